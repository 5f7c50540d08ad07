//! What the pages hold: a tree in which each node is one page of tokens after those of its parent.
//!
//! Keys and values depend on everything before them, so a page is known by its whole path. The tree
//! compares tokens themselves, so there is nothing that could collide.

use std::collections::HashMap;

use lapidary_backend::{PAGE, PageId};

/// The number of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NodeId(pub(crate) u32);

/// Soft tokens that stand together, and what they are: ids say nothing at their positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SoftKey {
    /// The position of the first.
    pub(crate) start: usize,
    /// How many.
    pub(crate) len: usize,
    /// What they are made of.
    pub(crate) hash: [u8; 32],
}

impl SoftKey {
    fn end(&self) -> usize {
        self.start + self.len
    }
}

/// Tokens with what stands at soft positions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text<'a> {
    pub(crate) tokens: &'a [u32],
    pub(crate) soft: &'a [SoftKey],
    /// Only texts of the same scope share pages.
    pub(crate) scope: u64,
}

impl<'a> Text<'a> {
    /// The soft tokens of a page.
    pub(crate) fn soft_in(&self, page: usize) -> impl Iterator<Item = &'a SoftKey> + use<'a> {
        let (from, to) = (page * PAGE, (page + 1) * PAGE);
        self.soft.iter().filter(move |key| key.start < to && from < key.end())
    }

    /// The last position up to `n` that is not between soft tokens that belong together.
    pub(crate) fn whole(&self, n: usize) -> usize {
        self.soft.iter().find(|key| key.start < n && n < key.end()).map_or(n, |key| key.start)
    }
}

/// One page of tokens.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) parent: Option<NodeId>,
    pub(crate) children: Vec<NodeId>,
    /// At most [`PAGE`]; fewer only at the end of a path.
    pub(crate) tokens: Vec<u32>,
    /// The soft tokens among them, those that reach into other pages included.
    pub(crate) soft: Vec<SoftKey>,
    /// For each group the page that holds it, if one does still.
    pub(crate) pages: Vec<Option<PageId>>,
    /// Pages before it.
    pub(crate) depth: usize,
    /// Sequences whose path it is on.
    pub(crate) holders: u32,
    /// Whether it can be found. Once it can't, it never can again.
    pub(crate) listed: bool,
    /// Whether a second sequence started after it.
    pub(crate) shared: bool,
    scope: u64,
}

impl Node {
    pub(crate) fn is_full(&self) -> bool {
        self.tokens.len() == PAGE
    }

    /// How many tokens of this page a text has, too.
    fn common(&self, text: &Text<'_>) -> usize {
        let from = self.depth * PAGE;
        let rest = text.tokens.get(from..).unwrap_or_default();
        let common = self.tokens.iter().zip(rest).take_while(|(a, b)| a == b).count();
        let mut theirs = text.soft_in(self.depth);
        let mut ours = self.soft.iter();
        loop {
            let (a, b) = (ours.next(), theirs.next());
            if a == b && a.is_some() {
                continue;
            }
            let first = [a, b].into_iter().flatten().map(|key| key.start).min();
            return first.map_or(common, |first| common.min(first.saturating_sub(from)));
        }
    }
}

/// All that can be found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree {
    nodes: Vec<Option<Node>>,
    unused: Vec<NodeId>,
    roots: HashMap<u64, NodeId>,
}

impl Tree {
    pub(crate) fn get(&self, id: NodeId) -> &Node {
        self.nodes[id.0 as usize].as_ref().expect("a node is known as long as anybody names it")
    }

    pub(crate) fn get_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id.0 as usize].as_mut().expect("a node is known as long as anybody names it")
    }

    /// Where the texts of a scope begin.
    pub(crate) fn root(&mut self, scope: u64, n_groups: usize) -> NodeId {
        if let Some(root) = self.roots.get(&scope) {
            return *root;
        }
        let root = self.add(None, 0, scope, n_groups);
        self.roots.insert(scope, root);
        root
    }

    /// An empty node after another, or at the beginning.
    pub(crate) fn child(&mut self, parent: NodeId, n_groups: usize) -> NodeId {
        let Node { depth, scope, parent: above, listed, .. } = *self.get(parent);
        let depth = if above.is_none() && self.is_root(parent) { 0 } else { depth + 1 };
        let child = self.add(Some(parent), depth, scope, n_groups);
        if listed {
            self.get_mut(parent).children.push(child);
        } else {
            self.get_mut(child).listed = false;
        }
        child
    }

    fn add(&mut self, parent: Option<NodeId>, depth: usize, scope: u64, n_groups: usize) -> NodeId {
        let node = Node {
            parent,
            children: Vec::new(),
            tokens: Vec::with_capacity(PAGE),
            soft: Vec::new(),
            pages: vec![None; n_groups],
            depth,
            holders: 0,
            listed: true,
            shared: false,
            scope,
        };
        match self.unused.pop() {
            Some(id) => {
                self.nodes[id.0 as usize] = Some(node);
                id
            }
            None => {
                self.nodes.push(Some(node));
                NodeId(self.nodes.len() as u32 - 1)
            }
        }
    }

    pub(crate) fn is_root(&self, id: NodeId) -> bool {
        self.roots.get(&self.get(id).scope) == Some(&id)
    }

    /// The path that a text has most tokens in common with, and how many those are.
    pub(crate) fn find(&self, text: &Text<'_>, path: &mut Vec<NodeId>) -> usize {
        path.clear();
        let Some(root) = self.roots.get(&text.scope) else { return 0 };
        let (mut at, mut n) = (*root, 0);
        loop {
            let children = self.get(at).children.iter();
            // Among equals, one that nobody holds need not be copied.
            let best = children
                .map(|id| (self.get(*id).common(text), self.get(*id).holders == 0, *id))
                .max_by_key(|(common, idle, _)| (*common, *idle));
            let Some((common @ 1.., _, id)) = best else { return n };
            path.push(id);
            n += common;
            if common < PAGE {
                return n;
            }
            at = id;
        }
    }

    /// A full page beside this one that holds the same.
    pub(crate) fn twin(&self, id: NodeId) -> Option<NodeId> {
        let node = self.get(id);
        let siblings = &self.get(node.parent?).children;
        siblings.iter().copied().find(|other| {
            let same = || {
                let other = self.get(*other);
                other.tokens == node.tokens && other.soft == node.soft
            };
            *other != id && same()
        })
    }

    /// Makes a node and all after it impossible to find, and names them.
    pub(crate) fn unlist(&mut self, id: NodeId, found: &mut Vec<NodeId>) {
        if !self.get(id).listed {
            return;
        }
        if let Some(parent) = self.get(id).parent {
            self.get_mut(parent).children.retain(|child| *child != id);
        }
        let mut todo = vec![id];
        while let Some(id) = todo.pop() {
            let node = self.get_mut(id);
            node.listed = false;
            // Nothing keeps those before it alive for its sake.
            node.parent = None;
            todo.append(&mut node.children);
            found.push(id);
        }
    }

    /// Forgets a node if nothing needs it, and those before it that were needed for it alone.
    pub(crate) fn prune(&mut self, id: NodeId) {
        let mut at = Some(id);
        while let Some(id) = at {
            let Some(Some(node)) = self.nodes.get(id.0 as usize) else { return };
            let needed = node.holders > 0
                || !node.children.is_empty()
                || node.pages.iter().any(Option::is_some);
            if needed {
                return;
            }
            let (parent, scope) = (node.parent, node.scope);
            if self.is_root(id) {
                self.roots.remove(&scope);
            }
            if let Some(Some(above)) = parent.and_then(|p| self.nodes.get_mut(p.0 as usize)) {
                above.children.retain(|child| *child != id);
            }
            self.nodes[id.0 as usize] = None;
            self.unused.push(id);
            at = parent;
        }
    }

    /// Nodes that are known.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        let nodes = self.nodes.iter().enumerate();
        nodes.filter_map(|(i, node)| Some((NodeId(i as u32), node.as_ref()?)))
    }
}
