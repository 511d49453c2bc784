//! The volumes of a gateway as exports: their names, the volumes that one client may see and open
//! and for which tenant, and the nodes of each part.

use std::cell::RefCell;
use std::fmt::Write;

use tidegate_algo::classify::access::{AccessClient, Knowledge, may_open};
use tidegate_fabric::service::Part;
use tidegate_model::NodeId;
use tidegate_model::cluster::{Geometry, Layout, Volume};
use tidegate_wire::nbd::{Export, ExportError, Exports};

/// One volume: its index in the list of the gateway's volumes, counting from zero. A pool is the
/// only volume of its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct VolumeIndex(pub(crate) usize);

impl VolumeIndex {
    /// The only volume of a pool's list.
    pub(crate) const POOL: Self = Self(0);
}

/// All volumes of a gateway, with the nodes of their parts.
#[derive(Debug)]
pub(crate) struct Volumes {
    volumes: Vec<(Volume, Layout)>,
}

impl Volumes {
    pub(crate) fn new(volumes: Vec<Volume>) -> Self {
        let with_layout = |volume: Volume| {
            let layout = volume.layout();
            (volume, layout)
        };
        Self { volumes: volumes.into_iter().map(with_layout).collect() }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Volume> {
        self.volumes.iter().map(|(volume, _)| volume)
    }

    /// The parts to open, each with its node, by volume.
    pub(crate) fn parts(&self) -> Vec<Vec<(NodeId, Part)>> {
        self.volumes.iter().map(|(volume, layout)| parts(volume, layout)).collect()
    }

    pub(crate) fn layout(&self, volume: VolumeIndex) -> &Layout {
        &self.volumes[volume.0].1
    }

    pub(crate) fn volume(&self, volume: VolumeIndex) -> &Volume {
        &self.volumes[volume.0].0
    }

    fn index(&self, name: &str) -> Option<VolumeIndex> {
        let index = match (name, self.volumes.len()) {
            ("", 1) => Some(0),
            _ => self.iter().position(|volume| volume.name == name),
        };
        index.map(VolumeIndex)
    }
}

/// An export that a client has opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Opened {
    pub(crate) volume: VolumeIndex,
    /// The tenant that owns requests through the export; empty if they are unattributed.
    pub(crate) tenant: String,
    /// The client has named the tenant.
    pub(crate) is_chosen: bool,
}

/// The volumes visible to one client.
pub(crate) struct Visible<'a> {
    pub(crate) volumes: &'a Volumes,
    pub(crate) knowledge: Knowledge<'a>,
    pub(crate) client: AccessClient<'a>,
    /// Why the first refused export was refused.
    pub(crate) denial: &'a RefCell<Option<String>>,
}

impl Exports for Visible<'_> {
    type Target = Opened;

    /// A volume's name, optionally with `@` and the tenant that owns the requests; empty if there
    /// is only one volume.
    fn find(&self, name: &str) -> Result<Export<Opened>, ExportError> {
        // Names of volumes contain no @.
        let (volume_name, tenant) = match name.split_once('@') {
            Some((volume, tenant)) => (volume, Some(tenant)),
            None => (name, None),
        };
        let index = self.volumes.index(volume_name).ok_or(ExportError::Unknown)?;
        let volume = self.volumes.volume(index);
        may_open(self.knowledge, self.client, volume, tenant).map_err(|denied| {
            let reason = denied.to_string();
            let mut denial = self.denial.borrow_mut();
            denial.get_or_insert_with(|| format!("export {}: {reason}", volume.name));
            ExportError::Denied(reason)
        })?;
        Ok(Export {
            name: match tenant {
                Some(tenant) => format!("{}@{tenant}", volume.name),
                None => volume.name.clone(),
            },
            description: description(volume),
            size: volume.size.0,
            read_only: volume.read_only,
            target: Opened {
                volume: index,
                tenant: tenant.unwrap_or(&volume.tenant).to_owned(),
                is_chosen: tenant.is_some(),
            },
        })
    }

    /// Those that this client may open.
    fn list(&self, each: &mut dyn FnMut(&str, &str)) {
        let may = |volume: &&Volume| may_open(self.knowledge, self.client, volume, None).is_ok();
        let visible = self.volumes.iter().filter(may);
        visible.for_each(|volume| each(&volume.name, &description(volume)));
    }
}

fn parts(volume: &Volume, layout: &Layout) -> Vec<(NodeId, Part)> {
    let part = |(index, node): (u32, &NodeId)| {
        let part = Part {
            volume: volume.name.clone(),
            index,
            length: layout.part_length(index),
            offset: volume.offsets.get(index as usize).copied().unwrap_or_default(),
            geometry: Geometry::of(volume),
        };
        (*node, part)
    };
    (0..).zip(&volume.nodes).map(part).collect()
}

fn description(volume: &Volume) -> String {
    let mut text = format!("{} on {} node", volume.size, volume.nodes.len());
    if volume.nodes.len() > 1 {
        // Writing to a string does not fail.
        let _ = write!(text, "s in stripes of {}", volume.stripe);
    }
    text
}
