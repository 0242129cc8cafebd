//! Meshes, their axes, and the device groups of collectives.

use super::special::Special;
use super::{Kind, List, Value, emit};
use crate::parse::{Parser, Result, Scope, fault};
use crate::proto::axis_ref_proto::SubAxis;
use crate::proto::mesh_proto::{IotaTransform, MeshAxis};
use crate::proto::{
    AxisRefProto, CollectiveDeviceListProto, HloInstructionProto, IotaReplicaGroupListProto,
    MeshAxesReplicaGroupListProto, MeshProto, ReplicaGroup,
};
use crate::suggest::did_you_mean;
use crate::text::Printer;

/// The words for a mesh of one device.
pub(super) const ONE_DEVICE: [&str; 2] = ["maximal_mesh", "single_device"];

/// The device groups of a collective, in whichever of the forms it has them: `{{0,1},{2,3}}`, `[2,4]<=[8]` or
/// `mesh['x'=2,'y'=4] {'y'}`.
pub(super) struct ReplicaGroups;

impl Special for ReplicaGroups {
    fn print(printer: &mut Printer<'_>, instruction: &HloInstructionProto, start: &str) {
        printer.text(start);
        let list = instruction.collective_device_list.as_deref();
        let iota = instruction.iota_collective_device_list.as_deref();
        if let Some(mesh_axes) = &instruction.mesh_axes_replica_group_list {
            let default = MeshProto::default();
            let mesh = mesh_axes.mesh.as_ref().unwrap_or(&default);
            emit!(printer, mesh, " {");
            printer.axes(mesh, &mesh_axes.axes, ",");
            printer.text("}");
        } else if let Some(iota) = iota.or(list.and_then(|list| list.iota_replica_group_list.as_ref())) {
            emit!(printer, "[", &iota.num_replica_groups, ",", &iota.num_devices_per_group, "]<=");
            printer.iota(&iota.iota_reshape_dims, &iota.iota_transpose_perm);
        } else {
            let groups = list.map(|list| &list.replica_groups).filter(|groups| !groups.is_empty());
            groups.unwrap_or(&instruction.replica_groups).print(printer);
        }
    }

    fn read(parser: &mut Parser<'_>, _: &Scope<'_>, target: &mut HloInstructionProto) -> Result<()> {
        match parser.lexer.peek() {
            Some(b'{') => {
                let replica_groups = Value::read(parser)?;
                target.collective_device_list =
                    Some(Box::new(CollectiveDeviceListProto { replica_groups, ..Default::default() }));
            }
            Some(b'[') => {
                let start = parser.lexer.here();
                let counts: Vec<i64> = parser.items(b'[', b']')?;
                let &[num_replica_groups, num_devices_per_group] = counts.as_slice() else {
                    return fault(start, "expected [groups,devices per group]");
                };
                if !parser.lexer.eat_symbol("<=") {
                    return parser.lexer.unexpected("\"<=\" before the sizes of an iota");
                }
                let (iota_reshape_dims, iota_transpose_perm) = parser.iota()?;
                target.iota_collective_device_list = Some(Box::new(IotaReplicaGroupListProto {
                    num_replica_groups,
                    num_devices_per_group,
                    iota_reshape_dims,
                    iota_transpose_perm,
                }));
            }
            _ => {
                let mesh = MeshProto::read(parser)?;
                let axes = parser.axes(&mesh)?;
                target.mesh_axes_replica_group_list =
                    Some(Box::new(MeshAxesReplicaGroupListProto { mesh: Some(mesh), axes }));
            }
        }
        Ok(())
    }
}

/// `{0,1}`.
impl Value for ReplicaGroup {
    fn print(&self, printer: &mut Printer<'_>) {
        self.replica_ids.print(printer);
    }

    fn read(parser: &mut Parser<'_>) -> Result<ReplicaGroup> {
        Ok(ReplicaGroup { replica_ids: Value::read(parser)? })
    }
}

/// `mesh['x'=2,'y'=4]`, with the devices' order where it is not the plain one; `maximal_mesh[device_id=3]`, which newer
/// ones call `single_device[device_id=3]`.
impl Value for MeshProto {
    fn print(&self, printer: &mut Printer<'_>) {
        if let (true, Some(device)) = (self.axes.is_empty(), self.device_ids.first()) {
            emit!(printer, "maximal_mesh[device_id=", device, "]");
            return;
        }
        emit!(printer, "mesh[", &List(&self.axes), "]");
        if let Some(iota) = &self.iota_transform {
            let dimension = |&dimension: &i64| i32::try_from(dimension).unwrap_or(-1);
            let permutation: Vec<i32> = iota.transpose_perm.iter().map(dimension).collect();
            printer.text(", device_ids=(");
            printer.iota(&iota.reshape_dims, &permutation);
            printer.text(")");
        } else if !self.device_ids.is_empty() {
            emit!(printer, ", device_ids=(", &List(&self.device_ids), ")");
        }
    }

    fn read(parser: &mut Parser<'_>) -> Result<MeshProto> {
        let mut mesh = MeshProto::default();
        if ONE_DEVICE.iter().any(|word| parser.lexer.eat_word(word)) {
            parser.lexer.expect(b'[', "before the device of a mesh of one")?;
            if parser.lexer.attribute_name()? != "device_id" {
                return parser.lexer.unexpected("device_id= in a mesh of one device");
            }
            mesh.device_ids = vec![parser.lexer.integer()?];
            parser.lexer.expect(b']', "at the end of a mesh")?;
            return Ok(mesh);
        }
        if !parser.lexer.eat_word("mesh") {
            return parser.lexer.unexpected("mesh[...], or device groups as {{0,1}} or [1,2]<=[2]");
        }
        mesh.axes = parser.items(b'[', b']')?;
        let before = parser.lexer.clone();
        if !(parser.lexer.eat(b',') && parser.lexer.eat_word("device_ids") && parser.lexer.eat(b'=')) {
            parser.lexer = before;
            return Ok(mesh);
        }
        if parser.lexer.peek() == Some(b'(') && parser.lexer.peek_second() == Some(b'[') {
            parser.lexer.expect(b'(', "before the order of devices")?;
            let (reshape_dims, permutation) = parser.iota()?;
            let transpose_perm = permutation.into_iter().map(i64::from).collect();
            mesh.iota_transform = Some(IotaTransform { reshape_dims, transpose_perm });
            parser.lexer.expect(b')', "after the order of devices")?;
        } else {
            mesh.device_ids = parser.items(b'(', b')')?;
        }
        Ok(mesh)
    }
}

/// `'x'=2`.
impl Value for MeshAxis {
    fn print(&self, printer: &mut Printer<'_>) {
        AxisName::print(&self.name, printer);
        emit!(printer, "=", &self.size);
    }

    fn read(parser: &mut Parser<'_>) -> Result<MeshAxis> {
        let name = AxisName::read(parser)?;
        parser.lexer.expect(b'=', "between the name and the size of an axis")?;
        Ok(MeshAxis { name, size: parser.lexer.integer()? })
    }
}

/// `'x'`; XLA before quoted names had them plain.
struct AxisName;

impl Kind<String> for AxisName {
    fn print(name: &String, printer: &mut Printer<'_>) {
        emit!(printer, "'", name.as_str(), "'");
    }

    fn read(parser: &mut Parser<'_>) -> Result<String> {
        match parser.lexer.peek() {
            Some(b'\'' | b'"') => parser.lexer.string(),
            _ => Ok(parser.lexer.take_while(|byte| byte.is_ascii_alphanumeric() || byte == b'_').to_string()),
        }
    }
}

impl Printer<'_> {
    /// Axes of a mesh: `'x'`, or `'x':(2)4` for a part of one.
    pub(super) fn axes(&mut self, mesh: &MeshProto, axes: &[AxisRefProto], separator: &str) {
        self.separated(axes, separator, |printer, axis| {
            match usize::try_from(axis.mesh_axis_index).ok().and_then(|index| mesh.axes.get(index)) {
                Some(mesh_axis) => AxisName::print(&mesh_axis.name, printer),
                None => printer.number(axis.mesh_axis_index),
            }
            if let Some(part) = &axis.sub_axis_info {
                emit!(printer, ":(", &part.pre_size, ")", &part.size);
            }
        });
    }

    /// `[8]`, `[2,4]T(1,0)`.
    pub(super) fn iota(&mut self, reshape: &[i64], permutation: &[i32]) {
        emit!(self, "[", &List(reshape), "]");
        // A transposition of one dimension is none.
        if permutation.len() > 1 {
            emit!(self, "T(", &List(permutation), ")");
        }
    }
}

impl Parser<'_> {
    pub(super) fn axes(&mut self, mesh: &MeshProto) -> Result<Vec<AxisRefProto>> {
        self.list_of(b'{', b'}', |parser| parser.axis(mesh))
    }

    pub(super) fn axis(&mut self, mesh: &MeshProto) -> Result<AxisRefProto> {
        let start = self.lexer.here();
        let name = AxisName::read(self)?;
        let by_name = mesh.axes.iter().position(|axis| axis.name == name).map(|place| place as i64);
        let place = by_name.or_else(|| name.parse().ok().filter(|place| (0..mesh.axes.len() as i64).contains(place)));
        let Some(mesh_axis_index) = place else {
            let near = did_you_mean(&name, mesh.axes.iter().map(|axis| axis.name.as_str()));
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

    /// `[4,2]T(1,0)`; one dimension needs no transposition.
    pub(super) fn iota(&mut self) -> Result<(Vec<i64>, Vec<i32>)> {
        let sizes: Vec<i64> = self.items(b'[', b']')?;
        let start = self.lexer.here();
        if !self.lexer.eat_word("T") {
            if sizes.len() == 1 {
                return Ok((sizes, vec![0]));
            }
            return self.lexer.unexpected("T(...), the order of several dimensions");
        }
        let permutation: Vec<i64> = self.items(b'(', b')')?;
        let mut is_taken = vec![false; sizes.len()];
        let is_new = permutation.iter().all(|&dimension| {
            let taken = usize::try_from(dimension).ok().and_then(|dimension| is_taken.get_mut(dimension));
            taken.is_some_and(|taken| !std::mem::replace(taken, true))
        });
        if !is_new || permutation.len() != sizes.len() {
            return fault(start, format!("{permutation:?} is not an order of {} dimensions", sizes.len()));
        }
        Ok((sizes, permutation.into_iter().map(|dimension| dimension as i32).collect()))
    }
}
