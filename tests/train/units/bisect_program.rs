use meshloom::hlo::proto::OpSharding;
use meshloom::hlo::proto::op_sharding::Type;
use meshloom_cli::internals::parts_of;

#[test]
fn tiles_are_where_xla_has_them() {
    // devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate
    let sharding = OpSharding {
        r#type: Type::Other.into(),
        tile_assignment_dimensions: vec![2, 1, 2],
        iota_reshape_dims: vec![2, 2],
        iota_transpose_perm: vec![1, 0],
        replicate_on_last_tile_dim: true,
        ..OpSharding::default()
    };
    let (padded, parts) = parts_of(&sharding, &[3, 5], 4).expect("tiles");
    assert_eq!(padded, [4, 5]);
    let rows: Vec<_> = parts.iter().map(|part| part[0].clone()).collect();
    assert_eq!(rows, [0..2, 2..4, 0..2, 2..4]);
    assert!(parts_of(&sharding, &[3, 5], 8).is_none());
}
