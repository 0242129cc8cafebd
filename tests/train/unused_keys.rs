//! Warnings of keys that nothing reads.

use crate::train::run_config::read;

/// Keys that nothing reads beside the others are reported, each with the reason; those at their default are not.
#[test]
fn keys_without_effect() {
    let diloco = ["mesh.axes=diloco=2,fsdp=4", "diloco.replicas=2"];
    let pipeline = ["mesh.axes=stage=2,fsdp=4", "pipeline.weights=per-iteration"];
    let cuda = ["target.platform=cuda", "mesh.axes=fsdp=8"];
    let jsonl = "no name in data.sources and data.validation is one of JSON Lines";
    let lines = [
        format!("data.field = \"body\" has no effect, because {jsonl}"),
        format!("data.bad_lines = \"skip\" has no effect, because {jsonl} and data.tokenizer is \"bytes\""),
    ];
    let tokenizer = ["data.tokenizer=tokenizer.json"];
    let cases: [(&[&str], &[&str], &str); 33] = [
        (
            &["train.schedule=constant"],
            &["train.floor=0.2"],
            "train.floor = 0.2 has no effect, because train.schedule is \"constant\"",
        ),
        (&["train.schedule=linear"], &["train.floor=0.2"], ""),
        (
            &["train.weight_decay=0"],
            &["train.no_decay=[\"*norm*\"]"],
            "train.no_decay = [\"*norm*\"] has no effect, because train.weight_decay is 0",
        ),
        (&[], &["train.no_decay=[\"*norm*\"]"], ""),
        (&[], &["train.eval_batches=3"], "train.eval_batches = 3 has no effect, because there is no validation set"),
        (&["data.validation=[\"more.txt\"]"], &["train.eval_batches=3"], ""),
        (&[], &["checkpoint.keep=5"], "checkpoint.keep = 5 has no effect, because checkpoint.dir is \"\""),
        (&["checkpoint.dir=saved"], &["checkpoint.keep=5"], ""),
        (&[], &["data.field=body"], &lines[0]),
        (&[], &["data.bad_lines=skip"], &lines[1]),
        // A folder may have anything.
        (&["data.sources=[\"folder\"]"], &["data.field=body", "data.bad_lines=skip"], ""),
        (&["data.validation=[\"a.jsonl.gz\"]"], &["data.field=body", "data.bad_lines=skip"], ""),
        (&["data.sources=[\"*.TXT.gz\"]"], &["data.field=body"], &lines[0]),
        (&tokenizer, &["data.bad_lines=skip"], ""),
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
            &["kernels.collective_matmul=off"],
            "kernels.collective_matmul = \"off\" has no effect, because partition.mode is \"gspmd\": XLA partitions plain \
             forms",
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
        (&[], &["model.experts=4"], "model.experts = 4 has no effect, because model.family is \"llama\""),
        (&[], &["model.q_lora=7"], "model.q_lora = 7 has no effect, because model.family is \"llama\""),
        (
            &["model.family=mixtral"],
            &["model.mlp=7"],
            "model.mlp = 7 has no effect, because model.family is \"mixtral\"",
        ),
        (&["model.family=mixtral"], &["model.experts=4"], ""),
        (
            &[],
            &["model.expert_capacity=1.5"],
            "model.expert_capacity = 1.5 has no effect, because model.family is \"llama\"",
        ),
        (
            &[],
            &["kernels.experts_exchange=gather"],
            "kernels.experts_exchange = \"gather\" has no effect, because model.family is \"llama\"",
        ),
        (&diloco, &["diloco.fragments=5"], "diloco.fragments = 5 has no effect, because diloco.streaming is false"),
        (&diloco, &["diloco.block=32"], "diloco.block = 32 has no effect, because diloco.transport is \"f32\""),
        (&diloco, &["diloco.block=32", "diloco.transport=int4"], ""),
        (
            &pipeline,
            &["pipeline.keep_gathered=true"],
            "pipeline.keep_gathered = true has no effect, because pipeline.weights is \"per-iteration\"",
        ),
        (
            &pipeline,
            &["pipeline.remat=dots", "remat.policy=full"],
            "remat.policy = \"full\" has no effect, because pipeline.remat is \"dots\"",
        ),
    ];
    for (base, changed, expected) in cases {
        assert_eq!(read("", base).warnings(), Vec::<String>::new(), "{base:?}");
        let found = read("", &[base, changed].concat()).warnings();
        assert_eq!(found.join("\n"), expected, "{base:?} {changed:?}");
    }
    // The written config counts, not the number of devices that were found.
    let settled = read("", &["target.platform=cuda", "mesh.axes=fsdp=4"]).on_devices(4).unwrap();
    assert_eq!(settled.warnings(), Vec::<String>::new());
}
