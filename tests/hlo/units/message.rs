use meshloom::hlo::message::{counted, listed};

#[test]
fn plurals() {
    let many = ["device", "axis", "leaf", "microbatch", "device id"].map(|what| counted(2, what));
    assert_eq!(many, ["2 devices", "2 axes", "2 leaves", "2 microbatches", "2 device ids"]);
    assert_eq!((counted(1, "axis"), counted(0, "axis")), ("1 axis".to_owned(), "0 axes".to_owned()));
}

#[test]
fn lists() {
    let items = |count: usize| (0..count).map(|index| index.to_string()).collect::<Vec<_>>();
    let said = [1, 2, 8, 10].map(|count| listed("key", &items(count)));
    assert_eq!(said[..2], ["key 0", "keys 0 and 1"]);
    assert_eq!(said[2..], ["keys 0, 1, 2, 3, 4, 5, 6 and 7", "keys 0, 1, 2, 3, 4, 5, 6, 7 and 2 more"]);
}
