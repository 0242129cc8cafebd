use hlo_dump::internals::check_command_line;

#[test]
fn the_command_line_is_sound() {
    check_command_line();
}
