//! Published models by name.

use meshloom::trace::Tree;
use meshloom_models::families::{NAMED_MODELS, named_model};
use meshloom_nn::DecoderConfig;

/// Parameters of each preset, as transformers counts them (tests/oracle/presets.py), which the script compares with the
/// published counts. transformers does not count biases of a choice, which are no parameters of its optimizers.
#[test]
fn presets_have_as_many_parameters_as_published() {
    let table = std::fs::read_to_string(support::path("tests/oracle/presets.tsv")).expect("the table");
    let rows: Vec<Vec<&str>> = table.lines().skip(1).map(|line| line.split('\t').collect()).collect();
    assert_eq!(rows.len(), NAMED_MODELS.len());
    for (name, _) in NAMED_MODELS {
        let published = named_model(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(published.unknown_keys, Vec::<String>::new(), "{name}");
        let parameters = DecoderConfig::new(published.architecture).parameters();
        let counted = parameters.paths().into_iter().zip(parameters.leaves());
        let counted = counted.filter(|(path, _)| !path.ends_with("choice_bias"));
        let count: usize = counted.map(|(_, param)| param.spec.ty.element_count()).sum();
        let row = rows.iter().find(|row| row[0] == *name).unwrap_or_else(|| panic!("{name} is not in the table"));
        assert_eq!(count.to_string(), row[2], "{name}");
    }
}

#[test]
fn a_preset_that_is_not_there_is_named() {
    let message = |name: &str| match named_model(name) {
        Ok(_) => "found".to_owned(),
        Err(error) => error.to_string(),
    };
    let start =
        "there is no model \"llama-3.1-8B\" (did you mean \"llama-3.1-8b\"?); there are deepseek-v3, gemma-2-2b, ";
    assert!(message("llama-3.1-8B").starts_with(start), "{}", message("llama-3.1-8B"));
}
