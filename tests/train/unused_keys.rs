//! Warnings of keys that have no effect beside keys of other sections.

use crate::train::run_config::read;

/// Keys that nothing reads beside the others are reported, each with the reason; those at their default are not.
#[test]
fn keys_without_effect() {
    let diloco = ["mesh.axes=diloco=2,fsdp=4", "diloco.replicas=2"];
    let pipeline = ["mesh.axes=stage=2,fsdp=4", "pipeline.weights=per-iteration"];
    let cuda = ["target.platform=cuda", "mesh.axes=fsdp=8"];
    let jsonl = "no name in data.sources and validation.sources is one of JSON Lines";
    let lines = [
        format!("data.field = \"body\" has no effect, because {jsonl}"),
        format!("data.bad_lines = \"skip\" has no effect, because {jsonl} and data.tokenizer is \"bytes\""),
    ];
    let tokenizer = ["data.tokenizer=tokenizer.json"];
    let cases: &[(&[&str], &[&str], &str)] = &[
        (
            &["train.weight_decay=0"],
            &["train.no_decay=[\"*norm*\"]"],
            "train.no_decay = [\"*norm*\"] has no effect, because train.weight_decay is 0.0",
        ),
        (&[], &["train.no_decay=[\"*norm*\"]"], ""),
        (&[], &["checkpoint.keep=5"], "checkpoint.keep = 5 has no effect, because checkpoint.dir is \"\""),
        (&["checkpoint.dir=saved"], &["checkpoint.keep=5"], ""),
        (&[], &["validation.batches=3"], "validation.batches = 3 has no effect, because there is no validation set"),
        (&["validation.sources=[\"more.txt\"]"], &["validation.batches=3"], ""),
        (
            &["checkpoint.dir=saved"],
            &["checkpoint.keep_best=2"],
            "checkpoint.keep_best = 2 has no effect, because there is no validation set",
        ),
        (&[], &["data.field=body"], &lines[0]),
        (&[], &["data.bad_lines=skip"], &lines[1]),
        // A folder may have anything.
        (&["data.sources=[\"folder\"]"], &["data.field=body", "data.bad_lines=skip"], ""),
        (&["validation.sources=[\"a.jsonl.gz\"]"], &["data.field=body", "data.bad_lines=skip"], ""),
        (&["data.sources=[\"*.TXT.gz\"]"], &["data.field=body"], &lines[0]),
        (&tokenizer, &["data.bad_lines=skip"], ""),
        (
            &["target.platform=tpu", "mesh.axes=fsdp=8", "kernels.attention=mosaic"],
            &["model.attention_dropout=0.1"],
            "kernels.attention = \"mosaic\" has no effect, because its kernels drop no weights and \
             model.attention_dropout is 0.1: attention is blockwise",
        ),
        (
            &[],
            &["train.choice_bias_rate=0.5"],
            "train.choice_bias_rate = 0.5 has no effect, because model.family is \"llama\", without biases of choices",
        ),
        (
            &pipeline,
            &["pipeline.remat=dots", "remat.policy=full"],
            "remat.policy = \"full\" has no effect, because pipeline.remat.policy is \"dots\"",
        ),
        (
            &["partition.mode=gspmd"],
            &["partition.replication=deny"],
            "partition.replication = \"deny\" has no effect, because partition.mode is \"gspmd\"",
        ),
        (
            &["partition.mode=shardy"],
            &["partition.replication=deny"],
            "partition.replication = \"deny\" has no effect, because partition.mode is \"shardy\"",
        ),
        (
            &["partition.mode=gspmd"],
            &["kernels.collective_matmul=false"],
            "kernels.collective_matmul = false has no effect, because partition.mode is \"gspmd\"",
        ),
        (&cuda, &["target.devices=3"], "target.devices = 3 has no effect, because target.platform is \"cuda\""),
        (&["target.platform=auto"], &["target.devices=3"], ""),
        (
            &["train.warmup=10"],
            &["train.steps=10"],
            "train.warmup is 10, but train.steps is 10: the learning rate rises until the last step, to 100 % of \
             train.learning_rate",
        ),
        (
            &[],
            &["train.steps=5"],
            "train.warmup is 20, but train.steps is 5: the learning rate rises until the last step, to 25 % of \
             train.learning_rate",
        ),
        (&["train.warmup=4"], &["train.steps=5"], ""),
        (
            &["model.family=mixtral"],
            &["model.mlp=7"],
            "model.mlp = 7 has no effect, because model.family.kind is \"mixtral\"",
        ),
        (&["model.family=mixtral"], &["model.family.experts=4"], ""),
        (
            &[],
            &["model.expert_capacity=1.5"],
            "model.expert_capacity = 1.5 has no effect, because model.family is \"llama\", without routed experts",
        ),
        (
            &[],
            &["kernels.experts_exchange=gather"],
            "kernels.experts_exchange = \"gather\" has no effect, because model.family is \"llama\", without routed experts",
        ),
        (&diloco, &["diloco.fragments=5"], "diloco.fragments = 5 has no effect, because diloco.streaming is false"),
        (&diloco, &["diloco.block=32"], "diloco.block = 32 has no effect, because diloco.transport is \"f32\""),
        (&diloco, &["diloco.block=32", "diloco.transport=int4"], ""),
        (
            &pipeline,
            &["pipeline.keep_gathered=true"],
            "pipeline.keep_gathered = true has no effect, because pipeline.weights is \"per-iteration\"",
        ),
    ];
    for &(base, changed, expected) in cases {
        assert_eq!(read("", base).warnings(), Vec::<String>::new(), "{base:?}");
        let found = read("", &[base, changed].concat()).warnings();
        assert_eq!(found.join("\n"), expected, "{base:?} {changed:?}");
    }
    // The written config counts, not the number of devices that were found.
    let settled = read("", &["target.platform=cuda", "mesh.axes=fsdp=4"]).on_devices(4).unwrap();
    assert_eq!(settled.warnings(), Vec::<String>::new());
}
