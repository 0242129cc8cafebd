//! `meshloom import` and `meshloom export`: published models in and out.

use anyhow::Result;
use meshloom::hlo::message::counted;
use meshloom::ir::DType;
use meshloom_models::published::{ExportOptions, Exported};
use meshloom_train::published::{self, Imported, StoredModel};

use crate::arguments::{Export, Import};

pub fn import(arguments: &Import) -> Result<()> {
    let Imported { folder, parameters, skipped } =
        published::import(&arguments.model, &arguments.checkpoint, &arguments.set)?;
    if !skipped.is_empty() {
        let (count, first) = (counted(skipped.len(), "tensor"), &skipped[0]);
        eprintln!("{count} left out that the model does not use, the first of them {first}");
    }
    println!("{parameters} parameters in {}; continue with --set train.init={0}", folder.display());
    Ok(())
}

pub fn export(arguments: &Export) -> Result<()> {
    let model = StoredModel::open(&arguments.checkpoint, &arguments.set)?;
    let dtype = arguments.dtype.as_deref().and_then(DType::from_name);
    let options = ExportOptions { dtype, max_shard_bytes: arguments.max_shard_bytes };
    let Exported { tensors, bytes } = published::export(&model, &arguments.model, options)?;
    println!("{} of {bytes} bytes in {}", counted(tensors, "tensor"), arguments.model.display());
    Ok(())
}
