use hlo_dump::internals::{Cell, document, json, table};
use maud::html;

#[test]
fn nothing_of_a_program_is_markup() {
    let hostile = "<b a='\"'>&\u{1}\n";
    let text = document(html! { b a=(hostile) { (hostile) } });
    let escaped = "&lt;b a='&quot;'&gt;&amp;\u{fffd}\n";
    assert_eq!(text, format!("<b a=\"{escaped}\">{escaped}</b>"));
    let text = json("d", &"</script><!--").into_string();
    assert_eq!(text, "<script type=\"application/json\" id=\"d\">\"\\u003c/script>\\u003c!--\"</script>");
    let table = table("t", ["<x>", "n"], &[()], |()| [Cell::code("<i>"), Cell::number(2.0, "2<")]).into_string();
    assert!(
        table.contains("<code>&lt;i&gt;</code>") && table.contains("2&lt;") && table.contains("&lt;x&gt;"),
        "{table}"
    );
}
