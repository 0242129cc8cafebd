use meshloom::analysis::scopes::first_levels;

#[test]
fn paths_are_cut() {
    let cases = [("a/b/c", 1, "a"), ("a/b/c", 2, "a/b"), ("a/b/c", 3, "a/b/c"), ("a/b/c", 9, "a/b/c"), ("", 2, "")];
    for (path, depth, expected) in cases {
        assert_eq!(first_levels(path, depth), expected);
    }
    assert_eq!(first_levels("a/b/c", 0), "a/b/c");
}
