//! The memory of any module: by hand on small ones; against what XLA has assigned, for ours and for JAX's.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use crate::hlo::programs::{golden, ours, text};
use flate2::{Compression, GzBuilder};
use meshloom::analysis::memory::{Remedy, RemedyKind, remedies};
use meshloom::analysis::{
    BufferKind, MemoryError, MemoryForm, ModuleMemory, memory, memory_of_assignment, memory_of_dump,
};
use meshloom::compile::Lowered;
use meshloom::hlo::proto::hlo_input_output_alias_proto::AliasEntryProto;
use meshloom::hlo::proto::{HloInputOutputAliasProto, HloModuleProto, HloProto};
use meshloom::hlo::read;
use prost::Message;
use support::cases::{cases, more_than_few};
use support::eight_devices::client;

fn of(module: &HloModuleProto) -> ModuleMemory {
    memory(module).expect("its memory")
}

/// Arguments, outputs and temporaries of a scheduled module.
fn check(source: &str, expected: (u64, u64, u64)) -> ModuleMemory {
    let module = text(&format!("HloModule m, is_scheduled=true\n{source}"));
    let found = of(&module);
    assert_eq!((found.arguments, found.outputs, found.temporaries), expected, "{source}");
    let peak = found.arguments + found.outputs - found.aliased + found.live_temporaries;
    assert_eq!(found.live_at_peak.iter().map(|buffer| buffer.bytes).sum::<u64>(), peak, "{source}");
    assert_eq!(found.curve.iter().map(|point| point.bytes).max(), Some(peak), "{source}");
    found
}

/// In these, an array of f32[256] has 1024 bytes.
const KIB: u64 = 1024;

#[test]
fn a_value_lives_until_it_is_read_for_the_last_time() {
    let found = check(
        "ENTRY main {
            x = f32[256] parameter(0)
            a = f32[256] custom-call(x), custom_call_target=\"a\"
            b = f32[512] custom-call(a), custom_call_target=\"b\"
            c = f32[256] custom-call(b), custom_call_target=\"c\"
            ROOT d = f32[256] custom-call(c), custom_call_target=\"d\"
        }",
        // `b` and `c` are live together. `a` lies where the result will; `c` cannot, which the result is made of.
        (KIB, KIB, 3 * KIB),
    );
    let names: Vec<(&str, BufferKind)> =
        found.live_at_peak.iter().map(|buffer| (buffer.name.as_str(), buffer.kind)).collect();
    assert_eq!(names[0], ("b", BufferKind::Temporary));
    assert_eq!(found.live_at_peak[0].shape, "f32[512]");
}

/// It is there while the call runs: beside what it reads and makes, and not beside what comes later.
#[test]
fn what_a_kernel_needs_while_it_runs() {
    let scratch =
        |bytes: u64| format!("custom_call_target=\"k\", frontend_attributes={{kernel_scratch_bytes=\"{bytes}\"}}");
    let source = |bytes: u64| {
        format!(
            "ENTRY main {{
                x = f32[256] parameter(0)
                a = f32[256] custom-call(x), custom_call_target=\"a\"
                b = f32[512] custom-call(a), {}
                c = f32[256] custom-call(b), custom_call_target=\"c\"
                ROOT d = f32[256] custom-call(c), custom_call_target=\"d\"
            }}",
            scratch(bytes)
        )
    };
    // Without: `b` and `c` are the most.
    check(&source(0), (KIB, KIB, 3 * KIB));
    // `b` and the scratch, which is gone when `c` is made.
    check(&source(KIB), (KIB, KIB, 3 * KIB));
    let found = check(&source(5 * KIB), (KIB, KIB, 7 * KIB));
    assert_eq!((found.live_at_peak[0].name.as_str(), found.live_at_peak[0].shape.as_str()), ("b", "u8[5120]"));
}

#[test]
fn what_is_elementwise_takes_over_what_it_reads_last() {
    check(
        "ENTRY main {
            x = f32[256] parameter(0)
            a = f32[256] custom-call(x), custom_call_target=\"a\"
            b = f32[256] add(a, a)
            c = f32[256] multiply(b, a)
            ROOT d = f32[512] custom-call(c), custom_call_target=\"d\"
        }",
        // `a` is read again after `b`: both are there; `c` takes over one of them. One may lie in the memory of the
        // result.
        (KIB, 2 * KIB, KIB),
    );
}

#[test]
fn updates_are_in_place() {
    check(
        "ENTRY main {
            x = f32[256] parameter(0)
            i = s32[] parameter(1)
            a = f32[4,256] custom-call(x), custom_call_target=\"a\"
            row = f32[1,256] bitcast(x)
            zero = s32[] constant(0)
            b = f32[4,256] dynamic-update-slice(a, row, i, zero)
            ROOT c = f32[8] custom-call(b), custom_call_target=\"c\"
        }",
        (KIB + 4, 32, 4 * KIB),
    );
}

#[test]
fn donated_arguments_are_used_for_results_and_before() {
    let source = "HloModule m, is_scheduled=true, input_output_alias={ {}: (0, {}, may-alias) }
        ENTRY main {
            x = f32[256] parameter(0)
            y = f32[256] parameter(1)
            a = f32[512] custom-call(x), custom_call_target=\"a\"
            b = f32[256] custom-call(a), custom_call_target=\"b\"
            ROOT c = f32[256] custom-call(b, y), custom_call_target=\"c\"
        }";
    let found = of(&text(source));
    assert_eq!((found.arguments, found.outputs, found.aliased), (2 * KIB, KIB, KIB));
    // `b` would fit where `x` was, but the result that goes there is made while `b` is read.
    assert_eq!((found.temporaries, found.peak), (3 * KIB, 5 * KIB));
    // An output that names no argument, or an argument that is not there, is not an alias.
    let mut module = text(source);
    let entry = AliasEntryProto { parameter_number: 7, ..Default::default() };
    module.input_output_alias = Some(HloInputOutputAliasProto { entries: vec![entry] });
    assert_eq!(of(&module).aliased, 0);
}

const LOOP: &str = "
    condition {
        p = (s32[], f32[256], f32[256]) parameter(0)
        i = s32[] get-tuple-element(p), index=0
        n = s32[] constant(7)
        ROOT less = pred[] compare(i, n), direction=LT
    }
    body {
        p = (s32[], f32[256], f32[256]) parameter(0)
        i = s32[] get-tuple-element(p), index=0
        x = f32[256] get-tuple-element(p), index=1
        w = f32[256] get-tuple-element(p), index=2
        one = s32[] constant(1)
        next = s32[] add(i, one)
        long = f32[1024] custom-call(x, w), custom_call_target=\"a\"
        y = f32[256] custom-call(long), custom_call_target=\"b\"
        ROOT r = (s32[], f32[256], f32[256]) tuple(next, y, w)
    }";

/// The carry is one buffer before, in and after the loop; what the loop does not change stays where it is.
#[test]
fn carries_are_in_place() {
    let source = format!(
        "{LOOP}
        ENTRY main {{
            x = f32[256] parameter(0)
            w = f32[256] parameter(1)
            zero = s32[] constant(0)
            i = s32[] copy(zero)
            first = f32[256] copy(x)
            t = (s32[], f32[256], f32[256]) tuple(i, first, w)
            l = (s32[], f32[256], f32[256]) while(t), condition=condition, body=body
            y = f32[256] get-tuple-element(l), index=1
            ROOT r = f32[8] custom-call(y), custom_call_target=\"c\"
        }}"
    );
    let found = of(&text(&format!("HloModule m, is_scheduled=true\n{source}")));
    assert_eq!((found.arguments, found.outputs), (2 * KIB, 32));
    // The carry and an iteration's array; then the pointers of the carried tuple. The counter lies where the result
    // will.
    assert_eq!(found.temporaries, KIB + 4 * KIB + 3 * 8, "{found}");
    let kinds = |kind| found.live_at_peak.iter().filter(|buffer| buffer.kind == kind).count();
    assert_eq!((kinds(BufferKind::Argument), kinds(BufferKind::Output)), (2, 1));
}

/// A loop over an argument that is not donated starts with a copy, if the module does not have it yet.
#[test]
fn an_argument_that_a_loop_changes_is_copied() {
    let source = format!(
        "{LOOP}
        ENTRY main {{
            x = f32[256] parameter(0)
            w = f32[256] parameter(1)
            zero = s32[] constant(0)
            t = (s32[], f32[256], f32[256]) tuple(zero, x, w)
            l = (s32[], f32[256], f32[256]) while(t), condition=condition, body=body
            y = f32[256] get-tuple-element(l), index=1
            ROOT r = f32[8] custom-call(y), custom_call_target=\"c\"
        }}"
    );
    let found = of(&text(&format!("HloModule m, is_scheduled=true\n{source}")));
    assert_eq!(found.arguments, 2 * KIB);
    assert!((5 * KIB..6 * KIB).contains(&found.temporaries), "{found}");
}

/// So does one that starts several carries with the same value.
#[test]
fn a_value_starts_one_carry() {
    let of_carries = |first: &str, second: &str| {
        let source = format!(
            "body {{
                t = (s32[], f32[256], f32[256]) parameter(0)
                i = s32[] get-tuple-element(t), index=0
                x = f32[256] get-tuple-element(t), index=1
                y = f32[256] get-tuple-element(t), index=2
                one = s32[] constant(1)
                next = s32[] add(i, one)
                a = f32[256] tanh(x)
                b = f32[256] cosine(y)
                ROOT r = (s32[], f32[256], f32[256]) tuple(next, a, b)
            }}
            condition {{
                t = (s32[], f32[256], f32[256]) parameter(0)
                i = s32[] get-tuple-element(t), index=0
                n = s32[] constant(8)
                ROOT c = pred[] compare(i, n), direction=LT
            }}
            ENTRY main {{
                p = f32[256] parameter(0)
                zero = s32[] constant(0)
                i = s32[] copy(zero)
                a = f32[256] copy(p)
                b = f32[256] custom-call(p), custom_call_target=\"b\"
                t = (s32[], f32[256], f32[256]) tuple(i, {first}, {second})
                l = (s32[], f32[256], f32[256]) while(t), condition=condition, body=body
                x = f32[256] get-tuple-element(l), index=1
                y = f32[256] get-tuple-element(l), index=2
                ROOT r = f32[8] custom-call(x, y), custom_call_target=\"c\"
            }}"
        );
        of(&text(&format!("HloModule m, is_scheduled=true\n{source}"))).temporaries
    };
    let different = of_carries("a", "b");
    assert!((2 * KIB..3 * KIB).contains(&different), "{different}");
    assert_eq!(of_carries("a", "a"), different);
}

#[test]
fn of_branches_the_largest_counts() {
    let source = "
        small { p = f32[256] parameter(0)  ROOT a = f32[256] custom-call(p), custom_call_target=\"a\" }
        large {
            p = f32[256] parameter(0)
            b = f32[2048] custom-call(p), custom_call_target=\"b\"
            ROOT c = f32[256] custom-call(b), custom_call_target=\"c\"
        }
        ENTRY main {
            which = s32[] parameter(0)
            x = f32[256] parameter(1)
            y = f32[256] conditional(which, x, x), branch_computations={small, large}
            ROOT r = f32[8] custom-call(y), custom_call_target=\"c\"
        }";
    check(source, (4 + KIB, 32, 9 * KIB));
}

/// The carry that an iteration receives is still live when the next carry is begun, so the next cannot lie over it.
#[test]
fn a_carry_is_not_where_it_is_read() {
    let source = "
        condition { p = f32[256] parameter(0)  ROOT c = pred[] custom-call(p), custom_call_target=\"c\" }
        body {
            p = f32[256] parameter(0)
            a = f32[256] custom-call(p), custom_call_target=\"a\"
            ROOT b = f32[256] negate(a)
        }
        ENTRY main {
            x = f32[256] parameter(0)
            first = f32[256] copy(x)
            ROOT l = f32[256] while(first), condition=condition, body=body
        }";
    // `a` is read last where `b` is made, but made while `p` is read, which is in the buffer of `b`.
    check(source, (KIB, KIB, KIB));
}

/// The buffer of a conditional's result is free in a branch until that makes it.
#[test]
fn a_branch_uses_the_buffer_of_the_result() {
    let source = "
        one { p = f32[256] parameter(0)  ROOT a = f32[256] custom-call(p), custom_call_target=\"a\" }
        other {
            p = f32[256] parameter(0)
            b = f32[256] custom-call(p), custom_call_target=\"b\"
            c = f32[256] custom-call(b), custom_call_target=\"c\"
            ROOT d = f32[256] custom-call(c), custom_call_target=\"d\"
        }
        ENTRY main {
            which = s32[] parameter(0)
            x = f32[256] parameter(1)
            ROOT y = f32[256] conditional(which, x, x), branch_computations={one, other}
        }";
    // `b` lies where `d` will, and only `c` has memory of its own.
    check(source, (4 + KIB, KIB, KIB));
}

#[test]
fn a_fusion_is_one_buffer() {
    let source = "
        sum { x = f32[] parameter(0)  y = f32[] parameter(1)  ROOT z = f32[] add(x, y) }
        fused {
            p = f32[256] parameter(0)
            a = f32[256] exponential(p)
            b = f32[256,256] broadcast(a), dimensions={0}
            zero = f32[] constant(0)
            ROOT c = f32[256] reduce(b, zero), dimensions={1}, to_apply=sum
        }
        ENTRY main {
            x = f32[256] parameter(0)
            y = f32[256] fusion(x), kind=kLoop, calls=fused
            ROOT r = f32[8] custom-call(y), custom_call_target=\"c\"
        }";
    check(source, (KIB, 32, KIB));
}

#[test]
fn asynchronous_operations_hold_what_they_read() {
    let source = "
        ENTRY main {
            x = f32[256] parameter(0)
            a = f32[256] custom-call(x), custom_call_target=\"a\"
            s = (f32[256], f32[1024]) all-gather-start(a), dimensions={0}, replica_groups={{0,1,2,3}}
            b = f32[512] custom-call(x), custom_call_target=\"b\"
            d = f32[1024] all-gather-done(s)
            ROOT r = f32[8] custom-call(d, b), custom_call_target=\"c\"
        }";
    // Both sides of the gather, what is computed meanwhile, and the pointers of the pair.
    check(source, (KIB, 32, 7 * KIB + 16));
}

/// A computation whose callers each run it: the calls are one after the other, so that it is there once.
#[test]
fn functions_that_are_called_twice() {
    let source = "
        f {
            p = f32[256] parameter(0)
            b = f32[2048] custom-call(p), custom_call_target=\"b\"
            ROOT c = f32[256] custom-call(b), custom_call_target=\"c\"
        }
        ENTRY main {
            x = f32[256] parameter(0)
            y = f32[256] call(x), to_apply=f
            z = f32[256] call(y), to_apply=f
            ROOT r = f32[8] custom-call(z), custom_call_target=\"c\"
        }";
    check(source, (KIB, 32, 9 * KIB + KIB));
}

/// A TPU pads the two fastest dimensions to tiles. A value that is moved to the host takes no memory of the device, and
/// neither does the buffer of a loop that it is written into, before and after the loop; a value that is moved back
/// does.
#[test]
fn what_is_on_the_host_has_no_memory_of_the_device() {
    let module = |to: &str, from: &str| {
        format!(
            "body {{
                s = (s32[], f32[256], f32[8,256]) parameter(0)
                i = s32[] get-tuple-element(s), index=0
                x = f32[256] get-tuple-element(s), index=1
                kept = f32[8,256] get-tuple-element(s), index=2
                y = f32[256] custom-call(x), custom_call_target=\"y\"
                h = f32[256] custom-call(y), {to}
                row = f32[1,256] reshape(h)
                zero = s32[] constant(0)
                more = f32[8,256] dynamic-update-slice(kept, row, i, zero)
                one = s32[] constant(1)
                next = s32[] add(i, one)
                ROOT t = (s32[], f32[256], f32[8,256]) tuple(next, y, more)
            }}
            condition {{
                s = (s32[], f32[256], f32[8,256]) parameter(0)
                i = s32[] get-tuple-element(s), index=0
                n = s32[] constant(8)
                ROOT l = pred[] compare(i, n), direction=LT
            }}
            ENTRY main {{
                a = f32[256] parameter(0)
                b = f32[256] custom-call(a), custom_call_target=\"b\"
                zero = s32[] constant(0)
                none = f32[] constant(0)
                empty = f32[8,256] broadcast(none), dimensions={{}}
                start = (s32[], f32[256], f32[8,256]) tuple(zero, b, empty)
                w = (s32[], f32[256], f32[8,256]) while(start), condition=condition, body=body
                kept = f32[8,256] get-tuple-element(w), index=2
                last = f32[1,256] dynamic-slice(kept, zero, zero), dynamic_slice_sizes={{1,256}}
                back = f32[1,256] custom-call(last), {from}
                ROOT r = f32[1,256] custom-call(back), custom_call_target=\"r\"
            }}"
        )
    };
    let target = |name: &str| format!("custom_call_target=\"{name}\"");
    let placed = |place: &str| {
        format!("{}, frontend_attributes={{_xla_buffer_placement=\"{place}\"}}", target("annotate_device_placement"))
    };
    let temporaries = |to: &str, from: &str| {
        let module = text(&format!("HloModule m, is_scheduled=true\n{}", module(to, from)));
        of(&module).temporaries
    };
    let on_device = temporaries(&target("h"), &target("d"));
    assert!((9 * KIB..12 * KIB).contains(&on_device), "{on_device}");
    for (to, from) in [(placed("pinned_host"), placed("device")), (target("MoveToHost"), target("MoveToDevice"))] {
        // One carry, and some pointers.
        let found = temporaries(&to, &from);
        assert!((KIB..KIB + 200).contains(&found), "{found}: {to}");
    }
}

#[test]
fn tiles_are_padded() {
    let argument = |shape: &str| {
        let source = format!("HloModule m, is_scheduled=true\nENTRY main {{ ROOT x = {shape} parameter(0) }}");
        of(&text(&source)).arguments
    };
    assert_eq!(argument("f32[3,16]{1,0}"), 192);
    assert_eq!(argument("f32[3,16]{1,0:T(8,128)}"), 8 * 128 * 4);
    assert_eq!(argument("f32[3,16]{0,1:T(8,128)}"), 16 * 128 * 4);
    assert_eq!(argument("bf16[2,9,130]{2,1,0:T(8,128)(2,1)}"), 2 * 16 * 256 * 2);
    assert_eq!(argument("f32[100]{0:T(128)}"), 512);
    assert_eq!(argument("f32[]{:T(128)}"), 4);
    assert_eq!(argument("f32[3,16]{1,0:S(5)}"), 0);
}

/// On a TPU, `S(1)` is on the chip; on a GPU, whose layouts have no tiles, it is a part of the main memory.
#[test]
fn memories_are_apart() {
    let source = |on_chip: &str| {
        let source = format!(
            "HloModule m, is_scheduled=true
            ENTRY main {{
                x = f32[1024]{{0:T(1024)}} parameter(0)
                a = f32[1024]{{{on_chip}}} custom-call(x), custom_call_target=\"a\"
                b = f32[2048]{{{on_chip}}} custom-call(a), custom_call_target=\"b\"
                c = f32[4096]{{0:T(1024)}} custom-call(b), custom_call_target=\"c\"
                h = f32[256]{{0:T(256)S(5)}} custom-call(c), custom_call_target=\"h\"
                ROOT d = f32[1024]{{0:T(1024)}} custom-call(c, h), custom_call_target=\"d\"
            }}"
        );
        of(&text(&source))
    };
    let spaces = |found: &ModuleMemory| -> Vec<(i64, u64)> {
        found.other_spaces.iter().map(|other| (other.space, other.bytes)).collect()
    };
    // `c` alone is a temporary; `a` and `b` are live together.
    let found = source("0:T(1024)S(1)");
    assert_eq!((found.temporaries, found.peak), (16 * KIB, 24 * KIB), "{found}");
    assert_eq!(spaces(&found), [(1, 12 * KIB), (5, KIB)]);
    // `b` and `c` are live together, and `a` fits where `c` will be.
    let found = source("0:S(1)");
    assert_eq!(found.temporaries, 24 * KIB, "{found}");
    assert_eq!(spaces(&found), [(5, KIB)]);
}

/// The compiler for TPUs keeps the memory of results for results; others put temporaries there while it is free.
#[test]
fn memory_of_results_on_a_tpu() {
    let temporaries = |tile: &str| {
        let source = format!(
            "HloModule m, is_scheduled=true
            ENTRY main {{
                x = f32[1024]{{0{tile}}} parameter(0)
                a = f32[1024]{{0{tile}}} custom-call(x), custom_call_target=\"a\"
                b = f32[256]{{0}} custom-call(a), custom_call_target=\"b\"
                ROOT d = f32[1024]{{0{tile}}} custom-call(b), custom_call_target=\"d\"
            }}"
        );
        of(&text(&source)).temporaries
    };
    assert_eq!((temporaries(""), temporaries(":T(1024)")), (KIB, 5 * KIB));
}

/// A module that is not compiled: what is elementwise has no memory.
#[test]
fn what_will_be_fused_has_no_memory() {
    let source = "HloModule m
        ENTRY main {
            x = f32[256] parameter(0)
            a = f32[256] exponential(x)
            b = f32[256] add(a, a)
            c = f32[256] negate(b)
            ROOT d = f32[256] tanh(c)
        }";
    let found = of(&text(source));
    assert_eq!((found.form, found.arguments, found.outputs), (MemoryForm::Uncompiled, KIB, KIB));
    assert_eq!(found.temporaries, 0, "{found}");
}

#[test]
fn broken_modules_have_some_memory() {
    let nothing = of(&HloModuleProto::default());
    assert_eq!((nothing.peak, nothing.curve.len()), (0, 0));
    assert_eq!(memory_of_dump(&HloProto::default()), Err(MemoryError::NoModule));
    let mut module = text(
        "ENTRY main { x = f32[256] parameter(0)  t = (f32[256]) tuple(x)  ROOT g = f32[256] get-tuple-element(t), index=0 }",
    );
    for index in [-1, 1, i64::MAX] {
        module.computations[0].instructions[2].tuple_index = index;
        assert_eq!(of(&module).arguments, KIB);
    }
    module.computations[0].instructions[1].operand_ids = vec![99];
    module.computations[0].root_id = 77;
    assert_eq!(of(&module).outputs, 0);
}

// Against XLA.

/// A row of the table: the estimates of the compiled and of the emitted module, and XLA's own figures.
struct Row {
    name: String,
    compiled: ModuleMemory,
    emitted: Option<ModuleMemory>,
    /// Arguments, outputs, aliased, temporaries.
    xla: [u64; 4],
}

impl Row {
    fn xla_total(&self) -> u64 {
        let [arguments, outputs, aliased, temporaries] = self.xla;
        arguments + outputs - aliased + temporaries
    }

    fn cells(&self) -> String {
        let percent = |found: u64, xla: u64| format!("{:+.1}%", 100.0 * (found as f64 / xla as f64 - 1.0));
        let pair =
            |memory: &ModuleMemory| (percent(memory.temporaries, self.xla[3]), percent(memory.peak, self.xla_total()));
        let (temporaries, total) = pair(&self.compiled);
        let emitted = self.emitted.as_ref().map(pair);
        let (emitted_temporaries, emitted_total) = emitted.unwrap_or_else(|| ("".into(), "".into()));
        let [.., xla] = self.xla;
        format!(
            "| {} | {} | {} | {temporaries} | {total} | {emitted_temporaries} | {emitted_total} |",
            self.name,
            self.xla_total(),
            xla
        )
    }
}

/// The optimized modules of [`ours`], with XLA's figures of each from when they were compiled.
struct Stored {
    modules: Vec<HloModuleProto>,
    figures: Vec<[u64; 4]>,
}

const STORED: &str = "tests/hlo/compiled";

/// Returns the path of a program's file.
fn stored_module(name: &str) -> PathBuf {
    let letter = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '-' };
    support::path(STORED).join(format!("{}.hlo.pb.gz", name.replace(", ", ",").chars().map(letter).collect::<String>()))
}

fn stored_figures() -> PathBuf {
    support::path(STORED).join("figures.tsv")
}

impl Stored {
    fn read(names: &[&str]) -> Stored {
        let module = |name: &&str| {
            let path = stored_module(name);
            let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            read::read(&bytes, &read::Limits::default()).unwrap_or_else(|error| panic!("{name}: {error}")).module
        };
        let table = fs::read_to_string(stored_figures()).expect("the figures");
        let figures = |name: &&str| {
            let row = table.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('\t'));
            let row = row.unwrap_or_else(|| panic!("there are no figures of {name}"));
            let numbers: Vec<u64> = row.split('\t').map(|number| number.parse().expect("a number")).collect();
            numbers.try_into().expect("four numbers")
        };
        Stored { modules: names.iter().map(module).collect(), figures: names.iter().map(figures).collect() }
    }

    fn write(&self, names: &[&str]) {
        fs::create_dir_all(support::path(STORED)).expect("a folder");
        let mut table = "program\targuments\toutputs\taliased\ttemporaries\n".to_owned();
        for ((name, module), [arguments, outputs, aliased, temporaries]) in
            names.iter().zip(&self.modules).zip(&self.figures)
        {
            let file = fs::File::create(stored_module(name)).expect("a file");
            let mut encoder = GzBuilder::new().write(file, Compression::best());
            encoder.write_all(&without_metadata(module).encode_to_vec()).expect("it can be written");
            encoder.finish().expect("it can be written");
            table += &format!("{name}\t{arguments}\t{outputs}\t{aliased}\t{temporaries}\n");
        }
        fs::write(stored_figures(), table).expect("a file that can be written");
    }
}

/// Removes the metadata, which is most of a module, and on which its memory does not depend.
fn without_metadata(module: &HloModuleProto) -> HloModuleProto {
    let mut module = HloModuleProto { stack_frame_index: None, ..module.clone() };
    for instruction in module.computations.iter_mut().flat_map(|computation| &mut computation.instructions) {
        instruction.metadata = None;
        instruction.original_value = None;
    }
    module
}

/// Compiles a program now, and returns its module and XLA's figures.
fn compiled_now(lowered: &Lowered) -> (HloModuleProto, [u64; 4]) {
    let program = lowered.compile(&client()).expect("it compiles");
    let stats = program.executable().memory_stats().expect("stats");
    let figures = [stats.arguments, stats.outputs, stats.aliased, stats.temporary].map(|bytes| bytes as u64);
    (program.executable().optimized_hlo().expect("a program").decode().expect("a module"), figures)
}

/// Returns the rows of the page.
fn rows(ours: &[(&str, Lowered)]) -> Vec<Row> {
    let names: Vec<&str> = ours.iter().map(|(name, _)| *name).collect();
    if std::env::var_os("MESHLOOM_UPDATE").is_some() {
        // Quick compiler options would store other programs.
        assert!(more_than_few(), "set MESHLOOM_EVERY_CASE=1 as well");
        let (modules, figures) = ours.iter().map(|(_, lowered)| compiled_now(lowered)).unzip();
        Stored { modules, figures }.write(&names);
    }
    let stored = Stored::read(&names);
    let of_ours = ours.iter().zip(&stored.modules).zip(&stored.figures);
    let of_ours = of_ours.map(|(((name, lowered), module), figures)| row(name, lowered, module, *figures));
    let of_jax = golden().into_iter().map(|golden| {
        let number = |name| golden.number(name) as u64;
        Row {
            name: format!("JAX: {}", golden.name),
            compiled: of(golden.module()),
            emitted: None,
            xla: ["arguments", "outputs", "aliased", "temporaries"].map(number),
        }
    });
    of_ours.chain(of_jax).collect()
}

fn row(name: &str, lowered: &Lowered, compiled: &HloModuleProto, xla: [u64; 4]) -> Row {
    let emitted = Some(of(&lowered.module.decode().expect("a module")));
    Row { name: name.into(), compiled: of(compiled), emitted, xla }
}

const HEADER: &str = "\
| program | XLA: total | XLA: temporaries | compiled: temporaries | compiled: total | emitted: temporaries | emitted: total |
|---|---|---|---|---|---|---|";

/// Checks that temporaries and all memory are within 1.5 % of XLA's figures, and that arguments and outputs are exact.
fn check_row(row: &Row) {
    let [arguments, outputs, aliased, temporaries] = row.xla;
    let found = &row.compiled;
    assert_eq!(found.form, MemoryForm::Scheduled, "{}", row.name);
    assert_eq!((found.arguments, found.outputs, found.aliased), (arguments, outputs, aliased), "{}", row.name);
    for (found, xla) in [(found.temporaries, temporaries), (found.peak, row.xla_total())] {
        let ratio = found as f64 / xla as f64;
        assert!((0.985..=1.015).contains(&ratio), "{}: {found} for XLA's {xla}", row.name);
    }
    if let Some(emitted) = &row.emitted {
        assert_eq!(emitted.form, MemoryForm::Uncompiled, "{}", row.name);
        assert_eq!((emitted.arguments, emitted.aliased), (arguments, aliased), "{}", row.name);
    }
}

/// Programs that were compiled once are stored with XLA's figures. The table is that of docs/memory.md;
/// `MESHLOOM_WRITE_DOCS=1` writes it again, and `MESHLOOM_UPDATE=1 MESHLOOM_EVERY_CASE=1` stores the programs anew.
#[test]
fn estimates_are_xlas_figures() {
    let rows = rows(&ours());
    let table = format!("{HEADER}\n{}\n", rows.iter().map(Row::cells).collect::<Vec<_>>().join("\n"));
    println!("{table}");
    assert!(rows.len() >= 10);
    rows.iter().for_each(check_row);
    check_page("table", &table);
}

/// Programs are compiled now. With the usual options they are equal to those that are stored.
#[test]
fn estimates_are_xlas_figures_now() {
    // The order is reversed, since the small programs come last.
    let ours: Vec<_> = ours().into_iter().rev().collect();
    let names: Vec<&str> = ours.iter().map(|(name, _)| *name).collect();
    let stored = Stored::read(&names);
    for index in cases("hlo memory of compiled programs", 1, 0..ours.len()) {
        let (name, lowered) = &ours[index];
        let (module, figures) = compiled_now(lowered);
        check_row(&row(name, lowered, &module, figures));
        assert!(!more_than_few() || figures == stored.figures[index], "{name}: {figures:?}; MESHLOOM_UPDATE=1");
    }
}

/// A table of docs/memory.md is this one, or `MESHLOOM_WRITE_DOCS=1` writes it.
pub fn check_page(name: &str, table: &str) {
    static PAGE: Mutex<()> = Mutex::new(());
    let _guard = PAGE.lock().unwrap_or_else(PoisonError::into_inner);
    let path = support::path("docs/memory.md");
    let page = fs::read_to_string(&path).expect("the page");
    let (start, end) = (format!("<!-- {name} -->\n"), "<!-- end -->");
    let (before, rest) = page.split_once(&start).expect("where the table starts");
    let (_, after) = rest.split_once(end).expect("where it ends");
    let expected = format!("{before}{start}{table}{end}{after}");
    if std::env::var_os("MESHLOOM_WRITE_DOCS").is_some() {
        fs::write(&path, expected).expect("a file that can be written");
    } else {
        assert_eq!(page, expected, "docs/memory.md is old; MESHLOOM_WRITE_DOCS=1 writes it again");
    }
}

/// XLA's own assignment, where a dump has it.
#[test]
fn assignments_are_the_truth() {
    for golden in golden() {
        let found = memory_of_dump(&golden.dump).expect("its memory");
        assert_eq!(found.form, MemoryForm::Assignment);
        let expected = ["arguments", "outputs", "aliased", "temporaries"].map(|name| golden.number(name) as u64);
        assert_eq!([found.arguments, found.outputs, found.aliased, found.temporaries], expected, "{}", golden.name);
        assert!(found.live_temporaries <= found.temporaries);
        // Both name the same arguments, by the same lines.
        let estimate = of(golden.module());
        let arguments = |memory: &ModuleMemory| {
            let buffers = memory.live_at_peak.iter().filter(|buffer| buffer.kind == BufferKind::Argument);
            let mut names: Vec<_> = buffers.map(|buffer| (buffer.name.clone(), buffer.bytes)).collect();
            names.sort();
            names
        };
        assert_eq!(arguments(&found), arguments(&estimate), "{}", golden.name);
        assert_eq!(memory_of_assignment(golden.module(), golden.dump.buffer_assignment.as_ref().unwrap()), found);
    }
}

/// The savings of each remedy, and the part that it is applied to.
fn saved(source: &str) -> Vec<(RemedyKind, String, u64)> {
    let found = remedies(&text(source), None, None, None).expect("its remedies");
    let row = |remedy: Remedy| (remedy.kind, remedy.of, remedy.saves);
    found.into_iter().map(row).collect()
}

/// Two layers save 2 KiB each for the backward pass. Computed again, those of the first are not there while the second
/// is in its backward pass, which has 1 KiB of its own.
#[test]
fn a_scope_that_is_computed_again_is_saved_once() {
    let call = |line: &str, name: &str| {
        format!("{line}, custom_call_target=\"f\", metadata={{op_name=\"jit(f)/{name}/dot\"}}\n")
    };
    let source = [
        "HloModule m, is_scheduled=true\nENTRY main {\nx = f32[256] parameter(0)\n".to_owned(),
        call("a = f32[512] custom-call(x)", "jvp(layers_0)/mlp"),
        call("h = f32[256] custom-call(a)", "jvp(layers_0)/out"),
        call("b = f32[512] custom-call(h)", "jvp(layers_1)/mlp"),
        call("i = f32[256] custom-call(b)", "jvp(layers_1)/out"),
        call("c = f32[256] custom-call(i, b)", "transpose(jvp(layers_1))/mlp"),
        call("ROOT d = f32[256] custom-call(c, a)", "transpose(jvp(layers_0))/mlp"),
        "}".to_owned(),
    ]
    .concat();
    let now = of(&text(&source));
    assert_eq!((now.live_temporaries, now.peak), (5 * KIB, 7 * KIB));
    let expected = [
        (RemedyKind::Remat, "layers_*".to_owned(), 2 * KIB),
        (RemedyKind::Remat, "layers_*/mlp".to_owned(), 2 * KIB),
        (RemedyKind::Donation, "x".to_owned(), KIB),
    ];
    assert_eq!(saved(&source), expected);
    // Another scope's backward pass reads the value of the first layer: it is kept.
    let kept = source.replace("transpose(jvp(layers_0))/mlp", "transpose(jvp(layers_0))/out");
    assert_eq!(saved(&kept)[0], (RemedyKind::Remat, "layers_*".to_owned(), 2 * KIB));
    assert!(!saved(&kept).iter().any(|(_, of, _)| of == "layers_*/mlp"));
}

/// Each output takes one argument of its type; an argument that is donated already counts no more.
#[test]
fn arguments_are_donated_once() {
    let source = |alias: &str| {
        format!(
            "HloModule m, is_scheduled=true{alias}
            ENTRY main {{
                p = f32[256] parameter(0), metadata={{op_name=\"state['w']\"}}
                q = f32[256] parameter(1), metadata={{op_name=\"old\"}}
                a = f32[256] custom-call(p, q), custom_call_target=\"a\"
                b = f32[128] custom-call(a), custom_call_target=\"b\"
                ROOT r = (f32[256], f32[128]) tuple(a, b)
            }}"
        )
    };
    let each = [(RemedyKind::Donation, "old".to_owned(), KIB), (RemedyKind::Donation, "state".to_owned(), KIB)];
    assert_eq!(saved(&source("")), each);
    assert!(saved(&source(", input_output_alias={ {0}: (1, {}, may-alias) }")).is_empty());
}
