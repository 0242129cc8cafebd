//! Every option of every command, with a value that means nothing for the input: an error, or a message that says so.
//!
//! The commands and their options are read off the shell completions, which clap makes of the command line itself; of
//! `meshloom`, off its command line. So an option without a row here fails the test, and so does a row whose option is
//! gone.

use std::collections::BTreeSet;

use crate::dump::command::{Ran, command, prints, run};

const CONFIG: &str = "examples/configs/default.toml";
const PROFILE: &str = "tests/foreign/profile/scan_remat.cpu.xplane.pb";
const TEXT: &str = "tests/foreign/fsdp_mlp.partitioned.txt";
/// It names its mesh: `data=2,fsdp=4`.
const NAMED: &str = "tests/foreign/fsdp_mlp.unoptimized.txt";
/// Compiled for TPUs.
const SCHEDULED: &str = "tests/foreign/pipeline.tpu.txt";
const FOLDER: &str = "tests/foreign/xla_dump";
/// Not partitioned yet.
const LOWERED: &str = "tests/foreign/lowered/fsdp_mlp.stablehlo.txt";

/// The way in which the user is told of a wrong or failing option, which decides the exit status.
#[derive(Clone, Copy)]
enum Told {
    /// By an error.
    Refused(&'static str),
    /// By a message beside the answer.
    Said(&'static str),
    /// By exit status 1.
    Found(&'static str),
}

use Told::{Found, Refused, Said};

/// The commands that read any input, and the arguments that they need after it.
const READING: [(&str, &[&str]); 15] = [
    ("show", &[]),
    ("collectives", &[]),
    ("traffic", &["--over", "data"]),
    ("memory", &[]),
    ("cost", &[]),
    ("overlap", &["--chip", "v5p"]),
    ("explain", &["parameters"]),
    ("partition", &[]),
    ("advise", &[]),
    ("diff", &[TEXT]),
    ("report", &["-o", "no/such/folder/page.html"]),
    ("lock", &[]),
    ("check", &["--max-memory", "1GiB"]),
    ("compile", &["--target", "cpu:8"]),
    ("bisect", &[]),
];

/// The options of reading an input: for each form of input, a value that does not apply to it; empty for a flag.
const READING_OPTIONS: [(&str, &str, &str, Told); 23] = [
    ("--mesh", TEXT, "data=3", Refused("has 3 devices, but there are 8")),
    ("--mesh", TEXT, "data", Refused("--mesh: mesh \"data\": \"data\" is not an axis")),
    ("--mesh", NAMED, "tensor=4,data=2", Refused("the module names its mesh, data=2,fsdp=4; leave --mesh out")),
    ("--mesh", FOLDER, "data=2,fsdp=4", Refused("the module names its mesh, data=8; leave --mesh out")),
    ("--mesh", CONFIG, "data=8", Refused("--set mesh.axes")),
    ("--stage", TEXT, "sharded", Refused("--stage sharded is for run configs and dump folders")),
    ("--stage", FOLDER, "sharded", Refused("--stage sharded: module_0012.jit_f has no such dump")),
    ("--stage", FOLDER, "differentiated", Refused("XLA has no such stage, only a run config")),
    ("--stage", CONFIG, "shraded", Refused("did you mean \"sharded\"?")),
    ("--module", TEXT, "jit_f", Refused("--module chooses a program of an XLA dump folder or a profile")),
    ("--module", FOLDER, "jit_g", Refused("--module jit_g: no module is called so (did you mean \"jit_f\"?)")),
    ("--module", CONFIG, "jit_f", Refused("--module chooses a program of an XLA dump folder or a profile")),
    ("--pass", TEXT, "spmd", Refused("--module chooses a program of an XLA dump folder or a profile")),
    ("--pass", FOLDER, "spmd", Refused("--pass spmd: module_0012.jit_f has no such dump")),
    ("--pass", CONFIG, "spmd", Refused("--module chooses a program of an XLA dump folder or a profile")),
    ("--stage", PROFILE, "sharded", Refused("--stage sharded is for run configs and dump folders")),
    (
        "--module",
        PROFILE,
        "jit_g",
        Refused("--module jit_g: the profile has no such program; it has jit_scan_remat(0)"),
    ),
    ("--pass", PROFILE, "spmd", Refused("--pass chooses a file of an XLA dump folder, and this is a profile")),
    ("--set", TEXT, "model.layers=1", Refused("--set is for run configs")),
    ("--set", CONFIG, "model.layrs=1", Refused("layers")),
    ("--function", TEXT, "f", Refused("a function is chosen from StableHLO, and it is HLO text")),
    ("--function", CONFIG, "f", Refused("--function chooses a function of StableHLO, and this is a run config")),
    ("--run-config", TEXT, "", Refused("this is not TOML")),
];

/// Options of single commands: the option first, then all that is given to the command.
const OPTIONS: &[(&str, &str, &[&str], Told)] = &[
    ("show", "--emit", &[TEXT, "--emit", "graph"], Refused("--emit graph is for run configs")),
    ("show", "--emit", &[TEXT, "--emit", "svg", "--json"], Refused("leave one of them out")),
    ("show", "--full", &[TEXT, "--full", "--emit", "dot"], Refused("--full is for --emit text, stablehlo and html")),
    ("show", "--artifact-version", &[TEXT, "--artifact-version", "1.9.0"], Refused("--artifact-version is for --emit")),
    (
        "show",
        "--artifact-version",
        &[TEXT, "--emit", "artifact", "--artifact-version", "0.9.0"],
        Refused("expected a version from 1.0.0 to 1.20.0"),
    ),
    ("show", "--computation", &[TEXT, "--computation", "man"], Refused("there is no computation \"man\"")),
    ("show", "--computation", &[TEXT, "--computation", "man", "--json"], Refused("there is no computation \"man\"")),
    ("show", "--computation", &[TEXT, "--computation", "x", "--emit", "proto"], Refused("--computation is for --emit")),
    ("show", "--depth", &[TEXT, "--depth", "2"], Refused("--depth is for --emit dot and svg")),
    ("show", "--kernels", &[TEXT, "--kernels"], Refused("--kernels is for run configs")),
    ("show", "--kernels", &[CONFIG, "--kernels", "--stage", "sharded"], Refused("take --stage partitioned")),
    ("show", "--output", &[TEXT, "--output", "no/such/folder/file"], Refused("cannot write no/such/folder/file")),
    ("collectives", "--over", &[TEXT, "--mesh", "data=2,fsdp=4", "--over", "fsd"], Refused("did you mean \"fsdp\"?")),
    ("collectives", "--over", &[TEXT, "--over", "fsdp"], Refused("add --mesh")),
    ("collectives", "--kind", &[TEXT, "--kind", "all-gathr"], Refused("did you mean \"all-gather\"?")),
    (
        "collectives",
        "--kind",
        &[TEXT, "--kind", "all-to-all"],
        Said("nothing is left of 5 collectives by --kind all-to-all"),
    ),
    ("collectives", "--min-bytes", &[TEXT, "--min-bytes", "4 parsecs"], Refused("is not a number of bytes")),
    (
        "collectives",
        "--min-bytes",
        &[TEXT, "--min-bytes", "1TiB"],
        Said("nothing is left of 5 collectives by --min-bytes"),
    ),
    ("collectives", "--scope", &[TEXT, "--scope", "nosuchscope"], Refused("no instruction has this in its scope path")),
    ("collectives", "--scope", &[TEXT, "--scope", "jvp(mpl)"], Refused("did you mean \"jvp(mlp)\"?")),
    (
        "collectives",
        "--in-loops",
        &[TEXT, "--in-loops", "--json"],
        Said("nothing is left of 5 collectives by --in-loops"),
    ),
    ("collectives", "--by", &[TEXT, "--by", "size"], Refused("invalid value 'size'")),
    ("collectives", "--by", &[TEXT, "--by", "total", "--group", "kind"], Refused("cannot be used with")),
    ("collectives", "--group", &[TEXT, "--group", "size"], Refused("invalid value 'size'")),
    ("collectives", "--steps", &[TEXT, "--steps", "0"], Refused("\"0\" is not a number of steps: 1 or more")),
    ("collectives", "--min-bytes", &[TEXT, "--min-bytes", "-5"], Refused("\"-5\" is not a number of bytes")),
    ("collectives", "--limit", &[TEXT, "--limit", "2", "--json"], Refused("--json prints all rows")),
    ("collectives", "--limit", &[TEXT, "--limit", "all"], Refused("invalid value 'all'")),
    ("traffic", "--over", &[TEXT, "--mesh", "data=2,fsdp=4"], Refused("has no axis diloco or replica")),
    ("traffic", "--over", &[TEXT, "--mesh", "data=2,fsdp=4", "--over", "fsd"], Refused("did you mean \"fsdp\"?")),
    ("traffic", "--steps", &[TEXT, "--steps", "0"], Refused("\"0\" is not a number of steps: 1 or more")),
    ("traffic", "--steps", &[TEXT, "--steps", "99999999999"], Refused("too many to list; take at most 100000")),
    ("traffic", "--limit", &[TEXT, "--limit", "-1"], Refused("\"-1\" is not a whole number")),
    (
        "traffic",
        "--compare",
        &[TEXT, "--mesh", "data=2,fsdp=4", "--over", "data", "--compare", "f32"],
        Refused("--compare changes a run config, and this is HLO text"),
    ),
    (
        "traffic",
        "--step-input",
        &["tests/foreign/local_sgd.optimized.txt", "--mesh", "diloco=2,fsdp=4", "--step-input", "stpe"],
        Refused("no input of whole numbers has this name (did you mean \"step\"?)"),
    ),
    ("traffic", "--gbps", &[TEXT, "--gbps", "0"], Refused("is not a rate above 0")),
    (
        "traffic",
        "--svg",
        &[TEXT, "--mesh", "data=2,fsdp=4", "--over", "data", "--svg", "no/such/folder/x.svg"],
        Refused("cannot write no/such/folder/x.svg"),
    ),
    ("memory", "--min-bytes", &[TEXT, "--min-bytes", "1TiB"], Said("by --min-bytes")),
    ("memory", "--scope", &[TEXT, "--scope", "nosuchscope"], Refused("no instruction has this in its scope path")),
    ("memory", "--limit", &[TEXT, "--limit", "all"], Refused("invalid value 'all'")),
    ("memory", "--limit", &[TEXT, "--limit", "2", "--json"], Refused("--json prints all rows")),
    ("memory", "--chip", &[TEXT, "--chip", "v9"], Refused("no chip is called \"v9\"")),
    ("memory", "--chip", &[TEXT, "--chip", "cpu"], Said("how much memory cpu has is not known")),
    (
        "memory",
        "--remedies",
        &[TEXT, "--remedies"],
        Said("the mesh is not known, so no argument is split over an axis"),
    ),
    ("memory", "--program", &[TEXT, "--program", TEXT], Refused("belongs to an out-of-memory message")),
    ("cost", "--limit", &[TEXT, "--limit", "2", "--json"], Refused("--json prints all rows")),
    ("cost", "--chip", &[TEXT, "--chip", "v9"], Refused("no chip is called \"v9\"")),
    ("cost", "--by", &[TEXT, "--by", "size"], Refused("invalid value 'size'")),
    ("cost", "--by", &[TEXT, "--by", "loop", "--scope", "mlp"], Refused("--by loop adds up whole loops")),
    ("cost", "--scope", &[TEXT, "--scope", "nosuchscope"], Refused("no instruction has this in its scope path")),
    ("cost", "--limit", &[TEXT, "--limit", "all"], Refused("invalid value 'all'")),
    (
        "partition",
        "--output",
        &[LOWERED, "--output", "no/such/folder/x.txt"],
        Refused("cannot write no/such/folder/x.txt"),
    ),
    ("partition", "--limit", &[LOWERED, "--limit", "2", "--json"], Refused("--json prints all rows")),
    ("advise", "--against", &[LOWERED, "--against", LOWERED], Refused("not partitioned yet: global shapes")),
    ("advise", "--target", &[LOWERED, "--target", "v5x:2x4"], Refused("did you mean")),
    ("advise", "--trials", &[LOWERED, "--trials", "-1"], Refused("\"-1\" is not a whole number")),
    ("advise", "--limit", &[LOWERED, "--limit", "2", "--json"], Refused("--json prints all rows")),
    ("overlap", "--chip", &[SCHEDULED], Refused("times need the rates of a chip; say for which, as --chip v5p")),
    ("overlap", "--chip", &[SCHEDULED, "--chip", "v9"], Refused("no chip is called \"v9\"")),
    ("overlap", "--chip", &[SCHEDULED, "--chip", "cpu"], Refused("no rates are published for cpu")),
    ("overlap", "--over", &[SCHEDULED, "--chip", "v5p", "--over", "fsdp"], Refused("add --mesh")),
    (
        "overlap",
        "--kind",
        &[SCHEDULED, "--chip", "v5p", "--kind", "all-gathr"],
        Refused("did you mean \"all-gather\"?"),
    ),
    ("overlap", "--min-bytes", &[SCHEDULED, "--chip", "v5p", "--min-bytes", "1TiB"], Said("by --min-bytes")),
    (
        "overlap",
        "--scope",
        &[SCHEDULED, "--chip", "v5p", "--scope", "nosuchscope"],
        Refused("no instruction has this in its scope path"),
    ),
    (
        "overlap",
        "--in-loops",
        &["tests/foreign/fsdp_mlp.tpu.txt", "--chip", "v5p", "--in-loops"],
        Said("by --in-loops"),
    ),
    ("overlap", "--limit", &[SCHEDULED, "--chip", "v5p", "--limit", "2", "--json"], Refused("--json prints all rows")),
    (
        "overlap",
        "--perfetto",
        &[SCHEDULED, "--chip", "v5p", "--perfetto", "no/such/folder/x.json"],
        Refused("cannot write no/such/folder/x.json"),
    ),
    ("overlap", "--perfetto", &[TEXT, "--chip", "v5p", "--perfetto", "x.json"], Refused("the module has no schedule")),
    ("overlap", "--profile", &[SCHEDULED, "--chip", "v5p", "--profile", PROFILE], Refused("--perfetto <FILE>")),
    (
        "overlap",
        "--profile",
        &[SCHEDULED, "--chip", "v5p", "--perfetto", "no/such/folder/x.json", "--profile", NAMED],
        Refused("it is no profile"),
    ),
    ("diff", "--set-after", &[TEXT, TEXT, "--set-after", "model.layers=1"], Refused("--set-after is for run configs")),
    ("diff", "--exit-code", &[TEXT, "tests/foreign/moe.partitioned.txt", "--exit-code"], Found("collectives")),
    ("diff", "--limit", &[TEXT, TEXT, "--limit", "all"], Refused("invalid value 'all'")),
    ("report", "--output", &[TEXT, "--output", "no/such/folder/x.html"], Refused("cannot write no/such/folder/x.html")),
    (
        "report",
        "--chip",
        &[TEXT, "--output", "no/such/folder/x.html", "--chip", "v9"],
        Refused("no chip is called \"v9\""),
    ),
    ("check", "--max-collective-bytes", &[TEXT, "--max-collective-bytes", "many"], Refused("is not a number of bytes")),
    ("check", "--max-collectives", &[TEXT, "--max-collectives", "many"], Refused("invalid value 'many'")),
    (
        "check",
        "--max-bytes-over",
        &[TEXT, "--mesh", "data=2,fsdp=4", "--max-bytes-over", "fsd=1"],
        Refused("did you mean"),
    ),
    (
        "check",
        "--max-collectives-over",
        &[TEXT, "--mesh", "data=2,fsdp=4", "--max-collectives-over", "fsd=1"],
        Refused("did you mean \"fsdp\"?"),
    ),
    (
        "check",
        "--compiled-as-emitted",
        &[TEXT, "--compiled-as-emitted", "0.9"],
        Refused("is not a ratio of at least 1"),
    ),
    (
        "check",
        "--compiled-as-emitted",
        &[TEXT, "--compiled-as-emitted", "1.02"],
        Refused("HLO does not say what to compile it for"),
    ),
    ("check", "--target", &[TEXT, "--max-collectives", "9", "--target", "cpu:8"], Refused("add one of them")),
    ("check", "--max-memory", &[TEXT, "--max-memory", "much"], Refused("is not a number of bytes")),
    (
        "check",
        "--min-overlap",
        &[TEXT, "--min-overlap", "fsdp=2", "--chip", "v5p"],
        Refused("\"fsdp=2\" is not a share from 0 to 1"),
    ),
    ("check", "--min-overlap", &[TEXT, "--min-overlap", "0.9"], Refused("HLO does not say what to compile it for")),
    ("check", "--min-overlap", &[SCHEDULED, "--min-overlap", "0.9"], Refused("say for which chip, as --chip v5p")),
    (
        "check",
        "--chip",
        &[SCHEDULED, "--min-overlap", "0.9", "--chip", "v5p", "--compiled-as-emitted", "1.02"],
        Refused("leave --chip out"),
    ),
    (
        "check",
        "--min-overlap",
        &[TEXT, "--min-overlap", "0.9", "--chip", "v5p"],
        Refused("the module has no schedule, so nothing says what runs beside a collective; compile it first"),
    ),
    (
        "check",
        "--min-overlap",
        &[SCHEDULED, "--min-overlap", "stage=0.9", "--mesh", "data=2,stage=4", "--chip", "v5p"],
        Found("stage=0.9"),
    ),
    (
        "check",
        "--chip",
        &[SCHEDULED, "--min-overlap", "0.9", "--chip", "cpu"],
        Refused("no rates are published for cpu"),
    ),
    ("check", "--chip", &[SCHEDULED, "--min-overlap", "0.9", "--chip", "v5q"], Refused("no chip is called \"v5q\"")),
    ("check", "--chip", &[TEXT, "--max-memory", "1GiB", "--chip", "v5p"], Refused("--min-overlap <[AXIS=]SHARE>")),
    ("lock", "--output", &[TEXT, "--output", "no/such/folder/x.lock"], Refused("cannot write no/such/folder/x.lock")),
    ("check", "--lock", &[TEXT, "--lock", TEXT], Refused("the first line is not \"# hlo-dump lock 1\"")),
    ("check", "--deny", &[TEXT, "--deny", "colectives-in-loops"], Refused("did you mean \"collectives-in-loops\"?")),
    ("check", "--deny", &[TEXT, "--deny", "all-gathr=fsdp"], Refused("did you mean \"all-gather\"?")),
    (
        "check",
        "--deny",
        &[TEXT, "--mesh", "data=2,fsdp=4", "--deny", "all-gather=fsd"],
        Refused("did you mean \"fsdp\"?"),
    ),
    (
        "check",
        "--replicated-bytes",
        &[TEXT, "--max-memory", "1GiB", "--replicated-bytes", "1KiB"],
        Refused("--deny replication counts"),
    ),
    (
        "check",
        "--allow-unpartitioned",
        &[NAMED, "--allow-unpartitioned", "--max-collective-bytes", "1KiB"],
        Said("not partitioned yet: global shapes"),
    ),
    ("report", "--profile", &[TEXT, "-o", "no/such/folder/page.html", "--profile", NAMED], Refused("it is no profile")),
    ("plan", "--set", &[CONFIG, "--set", "model.layrs=1"], Refused("layers")),
    (
        "plan",
        "--chip",
        &[CONFIG, "--set", "mesh.axes=stage=2,fsdp=4", "--set", "pipeline.repeats=2", "--chip", "v9"],
        Refused("v9"),
    ),
    ("plan", "--schedule", &[CONFIG, "--schedule"], Refused("there is no pipeline to plan")),
    ("plan", "--search", &[CONFIG, "--search"], Refused("names no hardware to search for")),
    ("plan", "--target", &[CONFIG, "--search", "--target", "v5x:2x4"], Refused("did you mean")),
    ("plan", "--target", &[CONFIG, "--target", "v5e:2x4"], Refused("there is no pipeline to plan")),
    ("plan", "--target", &[CONFIG, "--search", "--target", "no/such.toml"], Refused("cannot read the hardware")),
    ("plan", "--target", &[CONFIG, "--search", "--target", CONFIG], Refused("expected one of `chip`")),
    ("plan", "--network", &[CONFIG, "--target", "v5e:2x4", "--network", "0"], Refused("above 0")),
    ("plan", "--most", &[CONFIG, "--search", "--target", "v5e:2x4", "--most", "0"], Refused("at least 1")),
    ("plan", "--top", &[CONFIG, "--search", "--target", "v5e:2x4", "--top", "0"], Refused("at least 1")),
    (
        "plan",
        "--svg",
        &[CONFIG, "--search", "--target", "v5e:2x4", "--most", "1", "--svg", "no/such/folder/plans.svg"],
        Refused("cannot write no/such/folder/plans.svg"),
    ),
    (
        "plan",
        "--write",
        &[CONFIG, "--search", "--target", "v5e:2x4", "--most", "1", "--write", "no/such/folder/best.toml"],
        Refused("cannot write no/such/folder/best.toml"),
    ),
    ("compile", "--target", &[TEXT, "--target", "v5x:2x4"], Refused("did you mean")),
    ("compile", "--target", &[TEXT], Refused("HLO does not say what to compile it for")),
    ("compile", "--target", &[CONFIG], Refused("the config has no target.topology")),
    (
        "compile",
        "--target",
        &[CONFIG, "--target", "cpu:8", "--set", "target.topology=v5e:2x4"],
        Refused("--target is the config's target.topology, and --set gives it too"),
    ),
    ("compile", "--time-limit", &[TEXT, "--target", "cpu:8", "--time-limit", "0"], Refused("0 is not in")),
    ("compile", "--overlap", &[NAMED, "--target", "cpu:8", "--overlap"], Refused("no rates are published for cpu:8")),
    ("compile", "--output", &[NAMED, "--target", "cpu:8", "--output", "no/such/folder/x.pb"], Refused("cannot write")),
    ("compile", "--offline", &[NAMED, "--target", "cpu:8", "--offline"], Refused("plugin")),
    ("compile", "--shardy", &[TEXT, "--target", "cpu:8", "--shardy", "maybe"], Refused("invalid value 'maybe'")),
    ("compile", "--shardy", &[CONFIG, "--target", "cpu:8", "--shardy", "true"], Refused("--shardy is for HLO")),
    ("compile", "--limit", &[TEXT, "--target", "cpu:8", "--limit", "all"], Refused("invalid value 'all'")),
    ("bisect", "--reference", &[CONFIG, "--reference", TEXT], Refused("--reference is for a module")),
    ("bisect", "--reference", &[TEXT, "--reference", "no/such/file"], Refused("--reference no/such/file")),
    ("bisect", "--out", &[TEXT, "--out", "tests"], Refused("--out tests: the folder has files")),
    ("bisect", "--symptom", &[TEXT, "--symptom", "memory"], Refused("--symptom memory needs --max-memory")),
    ("bisect", "--only", &[TEXT, "--only", "passes"], Refused("it must be one of size, mesh, option, pass")),
    ("bisect", "--tolerance", &[TEXT, "--tolerance", "-1"], Refused("expected a number that is at least 0")),
    ("bisect", "--max-memory", &[TEXT, "--max-memory", "much"], Refused("invalid value 'much'")),
    ("bisect", "--time-limit", &[TEXT, "--time-limit", "0"], Refused("expected more than 0 seconds")),
    ("bisect", "--option", &[TEXT, "--option", "fast"], Refused("expected name=value")),
    ("bisect", "--plugin", &[TEXT, "--plugin", "none-such"], Refused("none-such")),
    ("bisect", "--inputs", &[TEXT, "--inputs", TEXT], Refused("the inputs cannot be read")),
    ("bisect", "--seed", &[TEXT, "--seed", "-1"], Refused("invalid value '-1'")),
    ("bisect", "--range", &[TEXT, "--range", "1,0"], Refused("expected two finite numbers")),
    ("bisect", "--special", &[TEXT, "--special=yes"], Refused("unexpected value 'yes'")),
    ("bisect", "--shrink", &[TEXT, "--shrink", "all"], Refused("invalid value 'all'")),
    ("doctor", "--fetch", &["--fetch", "cud"], Refused("did you mean \"cuda\"?")),
    ("", "--json", &["man", "--json"], Refused("this command prints no table")),
    ("", "--color", &["memory", TEXT, "--color", "red"], Refused("invalid value 'red'")),
    ("", "--units", &["memory", TEXT, "--units", "feet"], Refused("invalid value 'feet'")),
    ("", "--redact", &["memory", CONFIG, "--redact"], Refused("--redact is for HLO, and this is a run config")),
    ("", "--max-size", &["memory", TEXT, "--max-size", "many"], Refused("invalid value 'many'")),
    ("", "--max-depth", &["memory", TEXT, "--max-depth", "deep"], Refused("invalid value 'deep'")),
];

/// Commands, and their options; those of every command have none.
fn options() -> BTreeSet<(String, String)> {
    let completions = prints(&["completions", "fish"]);
    let mut found: BTreeSet<_> = meshloom_cli::internals::options().into_iter().collect();
    for line in completions.lines().filter(|line| line.starts_with("complete -c hlo-dump -n ")) {
        let condition = line.split('"').nth(1).expect("a condition");
        let command = match condition.strip_prefix("__fish_hlo_dump_using_subcommand ") {
            Some(command) => command.split(';').next().expect("a command").to_owned(),
            None => String::new(),
        };
        let Some((_, rest)) = line.split_once(" -l ") else { continue };
        let option = rest.split(' ').next().expect("a name");
        if !["help", "version"].contains(&option) {
            found.insert((command, format!("--{option}")));
        }
    }
    found
}

/// The rows of all tables: command, option, arguments, and what the user is told.
fn rows() -> Vec<(String, String, Vec<&'static str>, Told)> {
    let mut rows = Vec::new();
    for (command, needs) in READING {
        for (option, input, value, told) in READING_OPTIONS {
            // Both inputs of a diff are read alike.
            let needs = if command == "diff" { vec![input] } else { needs.to_vec() };
            let value = (!value.is_empty()).then_some(value);
            let arguments = [vec![command, input], needs, vec![option], value.into_iter().collect()].concat();
            rows.push((command.to_owned(), option.to_owned(), arguments, told));
        }
    }
    for &(command, option, arguments, told) in OPTIONS {
        let before = if command.is_empty() { vec![] } else { vec![command] };
        rows.push((command.to_owned(), option.to_owned(), [before, arguments.to_vec()].concat(), told));
    }
    rows
}

#[test]
fn no_option_is_without_an_answer() {
    // Options of every command are completed for each of them too, and those of `collectives` for its other name.
    let everywhere = ["--json", "--color", "--units", "--redact", "--max-size", "--max-depth"];
    let there_are: BTreeSet<(String, String)> = options()
        .into_iter()
        .filter(|(command, _)| command != "comms")
        .filter(|(command, option)| command.is_empty() || !everywhere.contains(&option.as_str()))
        .collect();
    let rows = rows();
    let tested: BTreeSet<(String, String)> =
        rows.iter().map(|(command, option, ..)| (command.clone(), option.clone())).collect();
    let missing: Vec<_> = there_are.difference(&tested).collect();
    assert!(missing.is_empty(), "add what these say to a value that means nothing: {missing:?}");
    let stale: Vec<_> = tested.difference(&there_are).collect();
    assert!(stale.is_empty(), "these are no options: {stale:?}");
    let empty = tempfile::tempdir().expect("a folder");
    let mut wrong = Vec::new();
    for (_, option, arguments, told) in rows {
        let ran = if option == "--offline" {
            // This is a machine without plugins, which only another process can be on.
            let mut command = command(&arguments);
            command.env("XDG_CACHE_HOME", empty.path()).env("PATH", "/nonexistent").env_remove("MESHLOOM_CPU_PLUGIN");
            Ran::of(command.output().expect("hlo-dump starts"))
        } else {
            run(&arguments)
        };
        let (status, expected) = match told {
            Refused(text) => (2, text),
            Said(text) => (0, text),
            Found(text) => (1, text),
        };
        let said = format!("{}{}", ran.out, ran.err);
        if ran.status != status || !said.contains(expected) || said.contains("panicked") {
            let start: String = said.chars().take(600).collect();
            wrong.push(format!("{arguments:?}: expected {status} and \"{expected}\", found {}: {start}", ran.status));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
