//! The errors and warnings when mesh, rules and model do not fit each other.

use insta::assert_snapshot;
use meshloom::pjrt::Client;
use meshloom_train::config::RunConfig;
use support::configs::DECODER;

const EIGHT_HEADS: &[&str] = &["model.heads=8", "model.kv_heads=4", "train.batch=16"];

/// Lowers the train step of a config and compiles it for four devices; returns what is refused, from the config to the
/// client.
fn check(overrides: &[&str]) -> String {
    let overrides: Vec<String> = [DECODER, EIGHT_HEADS, overrides].concat().into_iter().map(str::to_owned).collect();
    let refused = RunConfig::from_overrides(&overrides).map_err(meshloom_train::Error::from).and_then(|config| {
        let (_, lowered) = config.lower_train_step()?;
        Ok(lowered.compile(&Client::cpu(4)?)?)
    });
    match refused {
        Ok(_) => "it fits".to_owned(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn dimensions_that_do_not_divide() {
    // A parameter, with what to do about few key and value heads.
    assert_snapshot!(check(&["mesh.axes=tensor=8"]), @r#"tensor "state.params.layers.attention.wk": dimension 2 ("kv_heads") of size 4 cannot be split 8 ways by rule kv_heads -> tensor (preset decoder) on the mesh "tensor=8"; give these axes a size that divides it and the other devices to another axis, or have every device hold all key and value heads, by the rules ["kv_heads", []] and ["activation_kv_heads", []] before this one; or use rules.strict = false to leave the dimension unsplit"#);
    assert_snapshot!(check(&["mesh.axes=fsdp=8", "model.embed=60"]), @r#"tensor "state.params.embedding": dimension 1 ("embed") of size 60 cannot be split 8 ways by rule embed -> (fsdp,expert) (preset decoder) on the mesh "fsdp=8"; change the size, the mesh or the rule, or allow it to be padded (rules.uneven = true); or use rules.strict = false to leave the dimension unsplit"#);
    // The batch and its sequences, by their keys.
    assert_snapshot!(check(&["mesh.axes=data=2,fsdp=4", "train.batch=12"]), @r#"--set train.batch=12: train.batch is 12: it must be a multiple of 8: rule activation_batch -> (replica,data,fsdp,expert) (preset decoder) splits it over the mesh "data=2,fsdp=4"; or allow it to be padded by rules.uneven = true"#);
    assert_snapshot!(check(&["mesh.axes=data=2,context=4", "model.seq=62"]), @r#"--set model.seq=62: model.seq is 62: it must be a multiple of 4: rule activation_length -> context (preset decoder) splits it over the mesh "data=2,context=4"; or allow it to be padded by rules.uneven = true"#);
    // A value inside the model, with the line that names it.
    let text = check(&["mesh.axes=data=2,tensor=4", "model.seq=62"]);
    let (before, rest) = text.split_once("crates/nn/src/head.rs:").expect("a source line");
    assert_snapshot!(format!("{before}FILE:LINE{}", rest.trim_start_matches(|digit: char| digit.is_ascii_digit())), @r#"tensor "the value named in scope `embedding` at FILE:LINE": dimension 1 ("activation_norm_length") of size 62 cannot be split 4 ways by rule activation_norm_length -> (context,tensor) (preset decoder) on the mesh "data=2,tensor=4"; change the size, the mesh or the rule, or allow it to be padded (rules.uneven = true); or use rules.strict = false to leave the dimension unsplit"#);
}

#[test]
fn mesh_axes() {
    // One that no mesh has, one that no rule has, two that fill up.
    assert_snapshot!(check(&["mesh.axes=fsdp=8", "rules.override=[[\"embed\", \"fdsp\"]]"]), @r#"--set rules.override=[["embed", "fdsp"]]: rules.override is a list of one rule: rule embed -> fdsp (rules.override[0]) names mesh axis "fdsp", which the mesh "fsdp=8" does not have (did you mean "fsdp"?); or use rules.strict = false to ignore "fdsp""#);
    assert_snapshot!(check(&["mesh.axes=fsdp=4,spare=2"]), @r#"mesh axis "spare" of size 2 splits no parameter and no activation, so its devices repeat each other's work; name it in a rule or drop it from the mesh "fsdp=4,spare=2"; or use rules.strict = false to let them"#);
    assert_snapshot!(check(&["mesh.axes=data=-1,fsdp=-1"]), @r#"--set mesh.axes=data=-1,fsdp=-1: mesh.axes is "data=-1,fsdp=-1": mesh "data=-1,fsdp=-1": "data" and "fsdp" both have size -1; only one axis can fill up the devices (target.devices is 8)"#);
    // The axes that cross slices.
    assert_snapshot!(check(&["mesh.axes=data=2,fsdp=4", "mesh.dcn=fsdp=3"]), @r#"--set mesh.dcn=fsdp=3: mesh.dcn is "fsdp=3": dcn "fsdp=3": axis "fsdp" has size 4, which 3 does not divide; a part of an axis crosses slices"#);
}

#[test]
fn clashing_rules() {
    assert_snapshot!(check(&["mesh.axes=fsdp=8", "rules.override=[[\"mlp\", \"fsdp\"]]"]), @r#"tensor "state.params.layers.mlp.gate": dimension 1 ("embed") stays unsplit, because rule embed -> (fsdp,expert) (preset decoder) wants mesh axis "fsdp", which dimension 2 already has by rule mlp -> fsdp (rules.override[0]); add a rule for "embed" with other axes, or with none; or use rules.strict = false to leave the dimension unsplit"#);
    // With a fallback for the name that lost, and where it does not matter, they fit; but not on four devices.
    assert_snapshot!(check(&["mesh.axes=fsdp=8", "rules.override=[[\"mlp\", \"fsdp\"], [\"embed\"]]"]), @r#"mesh "fsdp=8" needs 8 devices, but there are 4; use a smaller mesh or more devices"#);
}

#[test]
fn too_few_devices() {
    assert_snapshot!(check(&["mesh.axes=fsdp=8"]), @r#"mesh "fsdp=8" needs 8 devices, but there are 4; use a smaller mesh or more devices"#);
    assert_snapshot!(check(&["mesh.axes=fsdp=16"]), @r#"--set mesh.axes=fsdp=16: mesh.axes is "fsdp=16": mesh "fsdp=16" has 16 devices, but there are 8; change a size, or give one axis -1 to fill up (target.devices is 8)"#);
    assert_snapshot!(check(&["mesh.axes=data=3,fsdp=-1"]), @r#"--set mesh.axes=data=3,fsdp=-1: mesh.axes is "data=3,fsdp=-1": mesh "data=3,fsdp=-1": axis "fsdp" of size -1 cannot fill up, because the other axes take 3 devices and 8 is not a multiple of that (target.devices is 8)"#);
}
