//! Profiles of a run. The CPU plugins have no profiler, so these have the run's own events; `ahead` starts the
//! profilers of other plugins.

use std::fs;
use std::path::{Path, PathBuf};

use meshloom::hlo::read::{Limits, read};
use meshloom::hlo::xplane::{CALLS_PLANE, XPlane, XSpace};
use support::cases::cases;
use support::configs::THE_BOOK;

use super::outputs::SMALL;
use super::program::{Said, refused, run, trained, with_keys};

/// The arguments of `meshloom train --profile` with a small model.
fn train<'a>(profile: &'a Path, arguments: &[&'a str]) -> Vec<&'a str> {
    let profile = profile.to_str().expect("a name");
    with_keys(
        &[&["train", "--sample", "0", "--profile", profile], arguments].concat(),
        &[&SMALL[..], &[THE_BOOK]].concat(),
    )
}

/// The one profile in a directory, where TensorBoard looks for it.
fn written(directory: &Path) -> PathBuf {
    let list = |folder: &Path| fs::read_dir(folder).expect("a folder").map(|it| it.expect("an entry").path());
    let runs: Vec<PathBuf> = list(&directory.join("plugins/profile")).collect();
    let [run] = runs.as_slice() else { panic!("{runs:?}") };
    let files: Vec<PathBuf> = list(run).collect();
    let [file] = files.as_slice() else { panic!("{files:?}") };
    assert!(file.to_string_lossy().ends_with(".xplane.pb"), "{file:?}");
    file.clone()
}

/// Names of the steps in a profile; each took time, and began when the one before was over.
fn steps(file: &Path) -> Vec<String> {
    let space = XSpace::read(&fs::read(file).expect("the profile"), &Limits::default()).expect("a profile");
    let planes: Vec<&XPlane> = space.planes.iter().filter(|plane| plane.name == CALLS_PLANE).collect();
    let [plane] = planes.as_slice() else { panic!("{planes:?}") };
    let events = &plane.lines[0].events;
    assert!(events.iter().all(|event| event.duration_ps > 0));
    assert!(events.windows(2).all(|two| two[0].offset_ps + two[0].duration_ps <= two[1].offset_ps));
    // The program is there for `hlo-dump report`: one of eight for the step, or of all the steps of a call.
    let programs = space.programs();
    let [program] = programs.as_slice() else { panic!("{programs:?}") };
    assert!(space.calls().all(|call| call.program == Some(program.id)));
    let module = read(program.bytes, &Limits::default()).expect("a program").module;
    assert_eq!(format!("{}({})", module.name, program.id), program.name);
    events.iter().map(|event| plane.event_metadata[&event.metadata_id].name.clone()).collect()
}

#[test]
fn the_steps_of_a_range_are_recorded() {
    let trained = trained();
    check(&trained.path("profile"), &trained.said, &["step 3", "step 4", "step 5"]);
    let folder = tempfile::tempdir().expect("a folder");
    let all: [(&[&str], &[&str]); 4] = [
        // Whole calls.
        (
            &["--steps", "6", "--profile-steps", "4..5", "--set", "train.steps_per_call=2"],
            &["steps 3 to 4", "steps 5 to 6"],
        ),
        (&["--steps", "6"], &["step 3", "step 4", "step 5"]),
        (&["--steps", "2"], &["step 2"]),
        (&["--steps", "4", "--profile-steps", "4..4"], &["step 4"]),
    ];
    for (number, (arguments, expected)) in cases("train profiles", 1, all).into_iter().enumerate() {
        let directory = folder.path().join(number.to_string());
        let said = run(&train(&directory, arguments));
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        check(&directory, &said, expected);
    }
}

/// The profile of a run has these steps, and the run says where it is.
fn check(directory: &Path, Said { stderr: said, .. }: &Said, expected: &[&str]) {
    let file = written(directory);
    assert_eq!(steps(&file), expected);
    assert!(said.contains(&format!("profile: {}", file.display())), "{said}");
    // There is nothing of the devices, and the run says why.
    assert!(said.contains("the profile has the times of whole steps only: "), "{said}");
}

#[test]
fn a_profile_that_cannot_be_is_refused_before_the_first_step() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    fs::write(&file, "no directory").expect("written");
    let absent = folder.path().join("absent");
    let cases: [(&Path, &[&str], &str); 4] = [
        (&file, &["--steps", "6"], "cannot be written"),
        (
            &absent,
            &["--steps", "4", "--profile-steps", "3..5"],
            "the steps 3..5 are to be profiled, but this run has 1..4",
        ),
        (&absent, &["--steps", "4", "--profile-steps", "5..6"], "the steps 5..6 are to be profiled"),
        (&absent, &["--steps", "4", "--profile-steps", "3..2"], "write A..B, the first and the last step"),
    ];
    for (directory, arguments, expected) in cases {
        let said = refused(&train(directory, arguments));
        assert!(said.contains(expected), "{said}");
    }
    assert!(!absent.exists());
}
