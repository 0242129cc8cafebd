//! The order in which the tokens of a row are dealt out to the devices of an axis.

use meshloom_nn::{ContextOrder, TokenOrder};

fn orders() -> impl Iterator<Item = (TokenOrder, usize)> {
    let parts = [1, 2, 3, 4, 8];
    let all =
        ContextOrder::ALL.into_iter().flat_map(move |order| parts.map(|parts| (TokenOrder::new(order, parts), parts)));
    all.flat_map(|(order, parts)| [1, 2, 5].map(|times| (order, times * order.multiple() * parts)))
}

#[test]
fn each_place_is_taken_once() {
    for (order, length) in orders() {
        let mut places = order.places(length).expect("a length that divides");
        places.sort_unstable();
        assert_eq!(places, (0..length).collect::<Vec<_>>(), "{order:?} {length}");
    }
}

#[test]
fn places_of_eight_tokens_on_two_devices() {
    let places = |order| TokenOrder::new(order, 2).places(8).expect("a length that divides");
    assert_eq!(places(ContextOrder::Natural), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(places(ContextOrder::TwoChunk), [0, 1, 6, 7, 2, 3, 4, 5]);
    assert_eq!(places(ContextOrder::Striped), [0, 2, 4, 6, 1, 3, 5, 7]);
}

#[test]
fn lengths_that_do_not_divide_are_refused() {
    let message = |order, length| match TokenOrder::new(order, 4).places(length) {
        Ok(_) => "taken".to_owned(),
        Err(error) => error.to_string(),
    };
    assert_eq!(
        message(ContextOrder::TwoChunk, 20),
        "rows of 20 tokens cannot be dealt out to 4 parts in the order \"two-chunk\"; their length must be a \
         multiple of 8"
    );
    assert_eq!(message(ContextOrder::Striped, 20), "taken");
    assert!(message(ContextOrder::Striped, 21).ends_with("a multiple of 4"));
    assert_eq!(message(ContextOrder::Natural, 21), "taken");
}

/// Compares the pairs of a query and a key that it sees, on the device with most of them, with the mean of all.
#[test]
fn devices_have_as_much_to_do() {
    let balance = |order, parts: usize| {
        let length = 64 * parts;
        let places = TokenOrder::new(order, parts).places(length).expect("a length that divides");
        let of_device = |part: &[usize]| part.iter().map(|place| place + 1).sum::<usize>();
        let pairs: Vec<usize> = places.chunks(64).map(of_device).collect();
        let most = pairs.iter().max().copied().unwrap_or_default();
        (most * parts) as f64 / pairs.iter().sum::<usize>() as f64
    };
    for parts in [2, 4, 8] {
        assert_eq!(balance(ContextOrder::TwoChunk, parts), 1.0);
        assert!((1.0..1.02).contains(&balance(ContextOrder::Striped, parts)));
        // Contiguous parts: (2 n - 1) / n of the mean, but for the diagonal.
        let expected = 2.0 - 1.0 / parts as f64;
        assert!((balance(ContextOrder::Natural, parts) - expected).abs() < 0.02, "{parts}");
    }
}
