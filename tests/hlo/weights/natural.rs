//! The order of names.

use meshloom_models::internals::natural;

#[test]
fn numbers_in_names_are_compared_as_numbers() {
    let sorted = [
        "",
        "10",
        "a",
        "a.2",
        "a.2.b",
        "a.10",
        "a.010",
        "a.99999999999999999999",
        "a.100000000000000000000",
        "a0",
        "a00",
        "a1",
        "a01",
        "ab",
        "b",
        "\u{e9}",
    ];
    for (i, a) in sorted.iter().enumerate() {
        for (j, b) in sorted.iter().enumerate() {
            assert_eq!(natural(a, b), i.cmp(&j), "{a} and {b}");
        }
    }
}
