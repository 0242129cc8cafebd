use meshloom::analysis::{Amount, Bounds, Branch, sum};

fn at(conditional: usize, branch: usize, branch_count: usize) -> Branch {
    Branch { conditional, branch, branch_count }
}

#[test]
fn branches_exclude_one_another() {
    let (once, if_taken) = (Amount::Exactly, Amount::AtMost);
    type Case = (&'static str, Vec<(Vec<Branch>, Amount)>, Bounds);
    let cases: Vec<Case> = vec![
        ("nothing", vec![], Bounds { least: 0, most: Some(0) }),
        ("outside", vec![(vec![], once(3)), (vec![], once(4))], Bounds { least: 7, most: Some(7) }),
        (
            "both branches",
            vec![(vec![at(0, 0, 2)], if_taken(3)), (vec![at(0, 1, 2)], if_taken(5)), (vec![], once(1))],
            Bounds { least: 4, most: Some(6) },
        ),
        ("equal branches", vec![(vec![at(0, 0, 2)], if_taken(3)), (vec![at(0, 1, 2)], if_taken(3))], {
            Bounds { least: 3, most: Some(3) }
        }),
        ("a branch moves nothing", vec![(vec![at(0, 0, 3)], if_taken(3)), (vec![at(0, 2, 3)], if_taken(5))], {
            Bounds { least: 0, most: Some(5) }
        }),
        (
            "two conditionals add up",
            vec![(vec![at(0, 0, 2)], if_taken(3)), (vec![at(1, 1, 2)], if_taken(5))],
            Bounds { least: 0, most: Some(8) },
        ),
        (
            "one within another",
            vec![
                (vec![at(0, 1, 2)], if_taken(10)),
                (vec![at(0, 1, 2), at(1, 0, 2)], if_taken(3)),
                (vec![at(0, 1, 2), at(1, 1, 2)], if_taken(5)),
                (vec![at(0, 0, 2)], if_taken(2)),
            ],
            Bounds { least: 2, most: Some(15) },
        ),
        ("not known", vec![(vec![at(0, 0, 1)], Amount::Unknown), (vec![], once(2))], {
            Bounds { least: 2, most: None }
        }),
        ("merged ways", vec![(vec![], if_taken(7))], Bounds { least: 0, most: Some(7) }),
    ];
    for (name, amounts, expected) in cases {
        let found = sum(amounts.iter().map(|(branches, amount)| (branches.as_slice(), *amount)));
        assert_eq!(found, expected, "{name}");
    }
    assert_eq!(Bounds { least: 2, most: Some(2) }.amount(), Amount::Exactly(2));
    assert_eq!(Bounds { least: 1, most: Some(2) }.amount(), Amount::AtMost(2));
}
