use meshloom_train::generate::ContinuedText;
use meshloom_train::tokenizer::Tokenizer;

fn pieces(text: &[u8], stops: &[&str]) -> Vec<String> {
    let (tokenizer, stops) = (Tokenizer::bytes(), stops.iter().map(|&stop| stop.to_owned()).collect::<Vec<_>>());
    let mut stream = ContinuedText::behind(&[65], &tokenizer, &stops);
    let mut pieces: Vec<String> = text.iter().map(|&byte| stream.push(byte.into())).collect();
    pieces.push(stream.finish());
    pieces
}

#[test]
fn no_half_character_is_given() {
    assert_eq!(pieces("aé→b".as_bytes(), &[]), ["a", "", "é", "", "", "→", "b", ""]);
}

#[test]
fn what_is_no_character_is_given_with_what_follows() {
    assert_eq!(pieces(b"a\xe2b", &[]), ["a", "", "\u{fffd}b", ""]);
    assert_eq!(pieces(b"a\xe2", &[]), ["a", "", "\u{fffd}"]);
}

#[test]
fn nothing_of_a_text_that_ends_it_is_given() {
    assert_eq!(pieces(b"one\n\ntwo", &["\n\n"]).concat(), "one");
    assert_eq!(pieces(b"one\ntwo", &["\n\n"]), ["o", "n", "e", "", "\nt", "w", "o", ""]);
    assert_eq!(pieces(b"aab", &["aac", "b"]).concat(), "aa");
    assert_eq!(pieces(b"one\n", &["\n\n"]).concat(), "one\n");
    assert_eq!(pieces(b"one", &[""]).concat(), "one");
}
