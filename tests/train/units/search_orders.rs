use meshloom_plan::internals::orders;

#[test]
fn each_order_once() {
    let mut all = orders(&[0, 2, 3, 5]);
    assert_eq!(all.first(), Some(&vec![0, 2, 3, 5]));
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 24);
}
