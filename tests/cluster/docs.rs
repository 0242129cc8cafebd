//! The recipes of docs/clusters.md are what the programs take.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::Stdio;
use std::sync::OnceLock;

use saphyr::{LoadableYamlNode, Yaml};
use support::counts::process;
use support::program::meshloom_with_processes as meshloom;

/// The blocks of the page in a language.
fn blocks(language: &str) -> Vec<String> {
    let page = std::fs::read_to_string(support::path("docs/clusters.md")).expect("the page");
    let fence = format!("```{language}\n");
    page.split(&fence[..]).skip(1).filter_map(|rest| Some(rest.split_once("```")?.0.to_owned())).collect()
}

/// The flags that `meshloom train` has.
fn flags() -> &'static BTreeSet<String> {
    static FLAGS: OnceLock<BTreeSet<String>> = OnceLock::new();
    FLAGS.get_or_init(|| {
        let help = process(meshloom()).args(["train", "--help"]).output().expect("meshloom runs").stdout;
        let help = String::from_utf8(help).expect("text");
        let words = help.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '-'));
        words.filter(|word| word.starts_with("--")).map(str::to_owned).collect()
    })
}

#[test]
fn scripts_parse_and_have_our_flags() {
    let (scripts, flags) = (blocks("sh"), flags());
    assert!(scripts.len() >= 4, "{scripts:?}");
    for script in &scripts {
        let mut bash = process("bash").arg("-n").stdin(Stdio::piped()).spawn().expect("bash runs");
        bash.stdin.take().expect("a pipe").write_all(script.as_bytes()).expect("it reads");
        assert!(bash.wait().expect("it ends").success(), "{script}");
        let own = script.split_once("meshloom train").map_or("", |(_, own)| own);
        for flag in own.split_whitespace().filter(|word| word.starts_with("--")) {
            assert!(flags.contains(flag), "{flag} in {script}");
        }
    }
}

#[test]
fn the_job_set_is_one() {
    let text = blocks("yaml").into_iter().next().expect("a block");
    let documents = Yaml::load_from_str(&text).unwrap_or_else(|error| panic!("{error}"));
    let set = &documents[0];
    assert_eq!((set["apiVersion"].as_str(), set["kind"].as_str()), (Some("jobset.x-k8s.io/v1alpha2"), Some("JobSet")));
    let job = &set["spec"]["replicatedJobs"][0]["template"]["spec"];
    assert_eq!(job["completionMode"].as_str(), Some("Indexed"));
    let count = job["completions"].as_integer().expect("a number");
    assert_eq!(job["parallelism"].as_integer(), Some(count), "all pods at once");
    let container = &job["template"]["spec"]["containers"][0];
    let variables = container["env"].as_vec().expect("variables");
    let variable = |name: &str| {
        let found = variables.iter().find(|variable| variable["name"].as_str() == Some(name));
        found.and_then(|variable| variable["value"].as_str()).unwrap_or_else(|| panic!("no {name}"))
    };
    assert_eq!(variable("MESHLOOM_PROCESS_COUNT"), count.to_string());
    assert!(variable("MESHLOOM_STORE").starts_with("http"));
    let flags = flags();
    for argument in container["args"].as_vec().expect("arguments").iter().filter_map(Yaml::as_str) {
        assert!(!argument.starts_with("--") || flags.contains(argument), "{argument}");
    }
}
