use hlo_dump::internals::{Area, common_scopes, squarified};

#[test]
fn tiles_fill_the_drawing() {
    let whole = Area { x: 0.0, y: 0.0, width: 6.0, height: 4.0 };
    let weights = [6.0, 6.0, 4.0, 3.0, 2.0, 2.0, 1.0];
    let areas = squarified(&weights, whole);
    assert_eq!(areas.len(), weights.len());
    for (area, weight) in areas.iter().zip(weights) {
        assert!((area.width * area.height - weight).abs() < 1e-9, "{area:?}");
        assert!(area.x >= 0.0 && area.x + area.width < 6.0 + 1e-9, "{area:?}");
        assert!(area.y >= 0.0 && area.y + area.height < 4.0 + 1e-9, "{area:?}");
    }
    // The example of the paper: the first two stand above each other.
    assert_eq!(areas[0], Area { x: 0.0, y: 0.0, width: 3.0, height: 2.0 });
    assert_eq!(areas[1], Area { x: 0.0, y: 2.0, width: 3.0, height: 2.0 });
}

#[test]
fn scopes_in_common() {
    let check = |scopes: &[&'static str], expected: &str| assert_eq!(common_scopes(scopes.iter().copied()), expected);
    check(&["a/b/c", "a/b/d", ""], "a/b/");
    check(&["a/bc", "a/bd"], "a/");
    check(&["é/x", "è/x"], "");
    check(&[], "");
}
