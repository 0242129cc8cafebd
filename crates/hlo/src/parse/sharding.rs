//! Shardings in tiles (`{devices=[2,4]<=[8]}`) and device groups. Those by the axes of a mesh are in
//! `named_sharding.rs`.

use super::Parser;
use super::error::{Result, fault};
use crate::proto::op_sharding::{ShardGroupType, Type};
use crate::proto::{
    CollectiveDeviceListProto, HloInstructionProto, IotaReplicaGroupListProto, OpSharding, ReplicaGroup,
};

/// What one sharding says, before it is known of what type it is.
#[derive(Default)]
struct Tiles {
    /// The last of `replicated`, `manual` and so on.
    keyword: Option<Type>,
    device: Option<i64>,
    sharding: OpSharding,
}

impl Parser<'_> {
    /// A sharding, or `{...}` around one for each leaf of a tuple.
    pub(super) fn sharding(&mut self) -> Result<OpSharding> {
        if self.lexer.peek() == Some(b'{') && matches!(self.lexer.peek_second(), Some(b'{' | b'}')) {
            let mut tuple_shardings = Vec::new();
            self.list(b'{', b'}', |parser| {
                tuple_shardings.push(parser.nested(Self::sharding)?);
                Ok(())
            })?;
            return Ok(OpSharding { r#type: Type::Tuple.into(), tuple_shardings, ..Default::default() });
        }
        self.lexer.expect(b'{', "before a sharding")?;
        let start = self.lexer.here();
        if matches!(self.lexer.peek_word(), Some("mesh" | "maximal_mesh")) {
            return self.named_sharding();
        }
        let mut tiles = Tiles::default();
        while !self.lexer.eat(b'}') {
            self.sharding_part(&mut tiles)?;
        }
        tiles.finish(start)
    }

    fn sharding_part(&mut self, tiles: &mut Tiles) -> Result<()> {
        let start = self.lexer.here();
        let sharding = &mut tiles.sharding;
        let word = self.lexer.expect_word("a part of a sharding or '}'")?;
        if let Some(keyword) = sharding_type(word) {
            tiles.keyword = Some(keyword);
            return Ok(());
        }
        match word {
            "last_tile_dim_replicate" => sharding.replicate_on_last_tile_dim = true,
            "shard_as" | "shard_like" => {
                sharding.is_shard_group = true;
                sharding.shard_group_id = self.lexer.integer()?;
                let kind = if word == "shard_as" { ShardGroupType::As } else { ShardGroupType::Like };
                sharding.shard_group_type = kind.into();
            }
            _ => {
                if self.lexer.peek() != Some(b'=') {
                    return fault(
                        start,
                        format!(
                            "\"{word}\" is no part of a sharding; those are replicated, manual, maximal, unreduced, \
                             unknown, device=, devices=, last_tile_dim_replicate, last_tile_dims=, shard_as, \
                             shard_like and metadata="
                        ),
                    );
                }
                self.lexer.eat(b'=');
                match word {
                    "device" => tiles.device = Some(self.lexer.integer()?),
                    "devices" => self.devices(sharding)?,
                    "last_tile_dims" => sharding.last_tile_dims = self.sharding_types()?,
                    "metadata" => sharding.metadata = self.metadata_or_list()?,
                    _ => {
                        return fault(
                            start,
                            format!("a sharding has device, devices, last_tile_dims and metadata, found \"{word}\""),
                        );
                    }
                }
            }
        }
        Ok(())
    }

    /// `[2,4]<=[8]`, `[2,4]<=[4,2]T(1,0)`, `[2,2]0,1,2,3`.
    fn devices(&mut self, sharding: &mut OpSharding) -> Result<()> {
        sharding.tile_assignment_dimensions = self.integers(b'[', b']')?;
        if self.lexer.eat_symbol("<=") {
            (sharding.iota_reshape_dims, sharding.iota_transpose_perm) = self.iota()?;
            return Ok(());
        }
        loop {
            sharding.tile_assignment_devices.push(self.lexer.integer()?);
            if !self.lexer.eat(b',') {
                return Ok(());
            }
        }
    }

    /// `[4,2]T(1,0)`; one dimension needs no transposition.
    pub(super) fn iota(&mut self) -> Result<(Vec<i64>, Vec<i32>)> {
        let sizes = self.integers(b'[', b']')?;
        let start = self.lexer.here();
        if !self.lexer.eat_word("T") {
            if sizes.len() == 1 {
                return Ok((sizes, vec![0]));
            }
            return self.lexer.unexpected("T(...), the order of several dimensions");
        }
        let permutation = self.integers(b'(', b')')?;
        let mut is_taken = vec![false; sizes.len()];
        for &dimension in &permutation {
            match usize::try_from(dimension).ok().and_then(|dimension| is_taken.get_mut(dimension)) {
                Some(taken) if !*taken => *taken = true,
                _ => return fault(start, format!("{permutation:?} is not an order of {} dimensions", sizes.len())),
            }
        }
        if permutation.len() != sizes.len() {
            return fault(start, format!("{permutation:?} is not an order of {} dimensions", sizes.len()));
        }
        Ok((sizes, permutation.into_iter().map(|dimension| dimension as i32).collect()))
    }

    /// `{manual, replicated}`.
    fn sharding_types(&mut self) -> Result<Vec<i32>> {
        let mut types = Vec::new();
        self.list(b'{', b'}', |parser| {
            let start = parser.lexer.here();
            let word = parser.lexer.expect_word("manual, maximal, replicated or unreduced")?;
            match sharding_type(word) {
                Some(kind) if kind != Type::Unknown => types.push(kind.into()),
                _ => {
                    return fault(
                        start,
                        format!("expected manual, maximal, replicated or unreduced, found \"{word}\""),
                    );
                }
            }
            Ok(())
        })?;
        Ok(types)
    }

    /// The device groups of a collective: `{{0,1},{2,3}}`, `[2,4]<=[8]` or `mesh['x'=2,'y'=4] {'y'}`.
    pub(super) fn replica_groups(&mut self, target: &mut HloInstructionProto) -> Result<()> {
        match self.lexer.peek() {
            Some(b'{') => {
                let groups = self.integer_lists()?.into_iter().map(|replica_ids| ReplicaGroup { replica_ids });
                let replica_groups = groups.collect();
                target.collective_device_list =
                    Some(Box::new(CollectiveDeviceListProto { replica_groups, ..Default::default() }));
            }
            Some(b'[') => {
                let start = self.lexer.here();
                let counts = self.integers(b'[', b']')?;
                let &[num_replica_groups, num_devices_per_group] = counts.as_slice() else {
                    return fault(start, "expected [groups,devices per group]");
                };
                if !self.lexer.eat_symbol("<=") {
                    return self.lexer.unexpected("\"<=\" before the sizes of an iota");
                }
                let (iota_reshape_dims, iota_transpose_perm) = self.iota()?;
                target.iota_collective_device_list = Some(Box::new(IotaReplicaGroupListProto {
                    num_replica_groups,
                    num_devices_per_group,
                    iota_reshape_dims,
                    iota_transpose_perm,
                }));
            }
            _ => target.mesh_axes_replica_group_list = Some(Box::new(self.mesh_axes_groups()?)),
        }
        Ok(())
    }
}

fn sharding_type(word: &str) -> Option<Type> {
    Some(match word {
        "replicated" => Type::Replicated,
        "maximal" => Type::Maximal,
        "manual" => Type::Manual,
        "unknown" => Type::Unknown,
        "unreduced" => Type::Unreduced,
        _ => return None,
    })
}

impl Tiles {
    fn finish(self, start: usize) -> Result<OpSharding> {
        let Tiles { keyword, device, mut sharding } = self;
        let has_tiles = !sharding.tile_assignment_dimensions.is_empty();
        match keyword {
            Some(Type::Maximal) => match device {
                Some(device) if !has_tiles => {
                    sharding.tile_assignment_devices = vec![device];
                }
                _ => return fault(start, "a maximal sharding needs device= and nothing else"),
            },
            Some(_) if has_tiles || device.is_some() => {
                return fault(start, "a sharding with this keyword has no devices");
            }
            None if !has_tiles => return fault(start, "a sharding needs a keyword, like replicated, or devices="),
            _ => {}
        }
        sharding.r#type = keyword.unwrap_or(Type::Other).into();
        Ok(sharding)
    }
}
