use std::collections::BTreeMap;

use hlo_dump::internals::{module_named, parts_of_name};

#[test]
fn a_number_is_the_number() {
    let names = ["module_0002.jit_f", "module_0020.jit_f2", "module_0021.jit_f_backward"];
    let modules: BTreeMap<String, ()> = names.into_iter().map(|name| (name.to_owned(), ())).collect();
    let found = |wanted| module_named(&modules, wanted).ok().map(|(name, _)| name.as_str());
    assert_eq!(found("2"), Some(names[0]));
    assert_eq!(found("0020"), Some(names[1]));
    assert_eq!(found("jit_f"), Some(names[0]));
    assert_eq!(found("backward"), Some(names[2]));
    assert_eq!(found("f2"), Some(names[1]));
    assert_eq!((found("3"), found("jit")), (None, None));
}

#[test]
fn names_are_taken_apart() {
    let cases = [
        ("module_0001.jit_f.before_optimizations.txt", Some(("module_0001.jit_f", "before_optimizations", true))),
        (
            "module_0001.jit_f.cpu_after_optimizations.hlo.pb",
            Some(("module_0001.jit_f", "cpu_after_optimizations", false)),
        ),
        (
            "module_0012.jit_f.g.sm_9.0_gpu_after_optimizations.txt.gz",
            Some(("module_0012.jit_f.g", "sm_9.0_gpu_after_optimizations", true)),
        ),
        (
            "module_0001.jit_f.0007.spmd.after_spmd-partitioning.before_x.txt",
            Some(("module_0001.jit_f", "0007.spmd.after_spmd-partitioning.before_x", true)),
        ),
        ("module_0001.jit_f.cpu_after_optimizations-buffer-assignment.txt", None),
        ("module_0001.jit_f.ir-no-opt.ll", None),
        ("notes.txt", None),
    ];
    for (name, expected) in cases {
        let found = parts_of_name(name);
        let found = found.as_ref().map(|(module, point, text)| (module.as_str(), point.as_str(), *text));
        assert_eq!(found, expected, "{name}");
    }
}
