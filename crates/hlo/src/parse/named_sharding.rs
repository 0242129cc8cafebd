//! Shardings and device groups by the axes of a mesh: `{mesh['x'=2,'y'=4], [{'x'}, {?}], unreduced={'y'}}`.

use super::Parser;
use super::error::{Result, fault, hint};
use crate::proto::axis_ref_proto::SubAxis;
use crate::proto::mesh_proto::{IotaTransform, MeshAxis};
use crate::proto::named_sharding_proto::DimensionSharding;
use crate::proto::{
    AxisRefProto, MeshAxesReplicaGroupListProto, MeshProto, NamedShardingProto, OpMetadata, OpSharding,
};

impl Parser<'_> {
    /// From the mesh on; the opening brace is read.
    pub(super) fn named_sharding(&mut self) -> Result<OpSharding> {
        let mut named = NamedShardingProto { mesh: Some(self.mesh()?), ..Default::default() };
        let whole = |named: &NamedShardingProto| {
            let count = named.mesh.as_ref().map_or(0, |mesh| mesh.axes.len());
            (0..count as i64).map(|mesh_axis_index| AxisRefProto { mesh_axis_index, sub_axis_info: None }).collect()
        };
        while !self.lexer.eat(b'}') {
            self.lexer.eat(b',');
            let start = self.lexer.here();
            if self.lexer.peek() == Some(b'[') {
                named.dim_shardings = self.dimension_shardings(&named)?;
                continue;
            }
            let word = self.lexer.expect_word("dimensions in brackets, replicated, unreduced, manual or metadata")?;
            let has_value = self.lexer.eat(b'=');
            match (word, has_value) {
                ("replicated", false) => {}
                ("unreduced", false) => named.unreduced_axes = whole(&named),
                ("manual", false) => named.manual_axes = whole(&named),
                ("replicated", true) => named.replicated_axes = self.axes(&named)?,
                ("unreduced", true) => named.unreduced_axes = self.axes(&named)?,
                ("manual", true) => named.manual_axes = self.axes(&named)?,
                ("metadata", true) => named.metadata = self.metadata_or_list()?,
                _ => {
                    return fault(
                        start,
                        format!(
                            "a sharding of a mesh has replicated, unreduced, manual and metadata, found \"{word}\""
                        ),
                    );
                }
            }
        }
        // The named form overrides the type, which XLA leaves at its default.
        Ok(OpSharding { named_sharding: Some(Box::new(named)), ..Default::default() })
    }

    /// `{...}` or `{{...}, {...}}`.
    pub(super) fn metadata_or_list(&mut self) -> Result<Vec<OpMetadata>> {
        if self.lexer.peek_second() != Some(b'{') {
            return Ok(vec![self.metadata()?]);
        }
        let mut list = Vec::new();
        self.list(b'{', b'}', |parser| {
            list.push(parser.metadata()?);
            Ok(())
        })?;
        Ok(list)
    }

    /// `mesh['x'=2,'y'=4], device_ids=(...)`, `maximal_mesh[device_id=3]`.
    fn mesh(&mut self) -> Result<MeshProto> {
        let mut mesh = MeshProto::default();
        if self.lexer.eat_word("maximal_mesh") {
            self.lexer.expect(b'[', "after maximal_mesh")?;
            if self.lexer.attribute_name()? != "device_id" {
                return self.lexer.unexpected("device_id= in a maximal mesh");
            }
            mesh.device_ids = vec![self.lexer.integer()?];
            self.lexer.expect(b']', "at the end of a mesh")?;
            return Ok(mesh);
        }
        if !self.lexer.eat_word("mesh") {
            return self.lexer.unexpected("mesh[...], or device groups as {{0,1}} or [1,2]<=[2]");
        }
        self.list(b'[', b']', |parser| {
            let name = parser.axis_name()?;
            parser.lexer.expect(b'=', "between the name and the size of an axis")?;
            mesh.axes.push(MeshAxis { name, size: parser.lexer.integer()? });
            Ok(())
        })?;
        let before = self.lexer.clone();
        if !(self.lexer.eat(b',') && self.lexer.eat_word("device_ids") && self.lexer.eat(b'=')) {
            self.lexer = before;
            return Ok(mesh);
        }
        if self.lexer.peek() == Some(b'(') && self.lexer.peek_second() == Some(b'[') {
            self.lexer.expect(b'(', "before the order of devices")?;
            let (reshape_dims, permutation) = self.iota()?;
            let transpose_perm = permutation.into_iter().map(i64::from).collect();
            mesh.iota_transform = Some(IotaTransform { reshape_dims, transpose_perm });
            self.lexer.expect(b')', "after the order of devices")?;
        } else {
            mesh.device_ids = self.integers(b'(', b')')?;
        }
        Ok(mesh)
    }

    /// `'x'`; XLA before quoted names had them plain.
    fn axis_name(&mut self) -> Result<String> {
        match self.lexer.peek() {
            Some(b'\'' | b'"') => self.lexer.string(),
            _ => Ok(self.lexer.take_while(|byte| byte.is_ascii_alphanumeric() || byte == b'_').to_string()),
        }
    }

    /// `'x'`, or `'x':(2)4` for a part of it.
    fn axis(&mut self, mesh: &MeshProto) -> Result<AxisRefProto> {
        let start = self.lexer.here();
        let name = self.axis_name()?;
        let by_name = mesh.axes.iter().position(|axis| axis.name == name).map(|place| place as i64);
        let place = by_name.or_else(|| name.parse().ok().filter(|place| (0..mesh.axes.len() as i64).contains(place)));
        let Some(mesh_axis_index) = place else {
            let near = hint(&name, mesh.axes.iter().map(|axis| axis.name.as_str()));
            return fault(start, format!("the mesh has no axis \"{name}\"{near}"));
        };
        let mut axis = AxisRefProto { mesh_axis_index, sub_axis_info: None };
        if self.lexer.eat(b':') {
            self.lexer.expect(b'(', "before the size of what is left out of an axis")?;
            let pre_size = self.lexer.integer()?;
            self.lexer.expect(b')', "after the size of what is left out of an axis")?;
            axis.sub_axis_info = Some(SubAxis { pre_size, size: self.lexer.integer()? });
        }
        Ok(axis)
    }

    fn axes(&mut self, named: &NamedShardingProto) -> Result<Vec<AxisRefProto>> {
        let mut axes = Vec::new();
        self.list(b'{', b'}', |parser| {
            axes.push(parser.axis(named.mesh.as_ref().unwrap_or(&MeshProto::default()))?);
            Ok(())
        })?;
        Ok(axes)
    }

    /// `[{'x'}, {'y', ?}, {}]`.
    fn dimension_shardings(&mut self, named: &NamedShardingProto) -> Result<Vec<DimensionSharding>> {
        let mesh = named.mesh.clone().unwrap_or_default();
        let mut dimensions = Vec::new();
        self.list(b'[', b']', |parser| {
            let mut dimension = DimensionSharding { axes: Vec::new(), is_closed: true };
            parser.list(b'{', b'}', |parser| {
                if parser.lexer.eat(b'?') {
                    dimension.is_closed = false;
                } else if dimension.is_closed {
                    dimension.axes.push(parser.axis(&mesh)?);
                } else {
                    return parser.lexer.unexpected("'}' after '?'");
                }
                Ok(())
            })?;
            dimensions.push(dimension);
            Ok(())
        })?;
        Ok(dimensions)
    }

    /// `mesh['x'=2,'y'=4] {'y'}`.
    pub(super) fn mesh_axes_groups(&mut self) -> Result<MeshAxesReplicaGroupListProto> {
        let named = NamedShardingProto { mesh: Some(self.mesh()?), ..Default::default() };
        let axes = self.axes(&named)?;
        Ok(MeshAxesReplicaGroupListProto { mesh: named.mesh, axes })
    }
}
