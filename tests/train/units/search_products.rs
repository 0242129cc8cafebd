use meshloom_plan::internals::factorizations;

#[test]
fn devices_as_products() {
    let all = factorizations(8);
    // Three factors of two over six axes.
    assert_eq!(all.len(), 56);
    assert!(all.iter().all(|sizes| sizes.iter().product::<usize>() == 8));
}
