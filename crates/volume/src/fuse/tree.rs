//! What is mounted: the volume as a file, over another file, or alone in a folder.

/// The number of whatever is mounted itself.
const ROOT: u64 = 1;
/// The number of the file in a folder.
const INSIDE: u64 = 2;

/// A file or a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Folder,
    File,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    /// The file lies in a folder, and is not itself what is mounted.
    pub(super) in_folder: bool,
    /// Its name there.
    pub(super) name: String,
    pub(super) size_bytes: u64,
    /// Whose they are.
    pub(super) user: u32,
    pub(super) group: u32,
}

impl Tree {
    /// What has this number.
    pub(super) fn node(&self, number: u64) -> Option<Node> {
        match (self.in_folder, number) {
            (true, ROOT) => Some(Node::Folder),
            (true, INSIDE) | (false, ROOT) => Some(Node::File),
            _ => None,
        }
    }

    /// The number of a node.
    pub(super) fn number_of(&self, node: Node) -> u64 {
        match node {
            Node::File if self.in_folder => INSIDE,
            Node::File | Node::Folder => ROOT,
        }
    }
}
