#[test]
fn the_command_lines_are_sound() {
    hlo_dump::internals::check_command_line();
    meshloom_cli::internals::check_command_line();
}
