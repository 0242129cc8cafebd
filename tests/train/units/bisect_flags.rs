use meshloom_cli::internals::xla_flags;

#[test]
fn the_environment_is_read_as_xla_reads_it() {
    let flags = "--xla_cpu_enable_fast_math --xla_dump_to=x  --xla_force_host_platform_device_count=8 junk";
    assert_eq!(xla_flags(flags).collect::<Vec<_>>(), ["xla_cpu_enable_fast_math=true", "xla_dump_to=x"]);
}
