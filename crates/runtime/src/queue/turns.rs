//! The keys that are ready, by namespace. The namespaces take turns, and a namespace may use at most three quarters (rounded
//! up) of the tasks of a worker. So the many runs of one tenant cannot block the runs of another tenant (N8).

use std::collections::{HashMap, VecDeque};

/// A key that belongs to a namespace.
pub trait Namespaced {
    /// The namespace.
    fn namespace(&self) -> &str;
}

/// Namespace and name of an object.
impl Namespaced for (String, String) {
    fn namespace(&self) -> &str {
        &self.0
    }
}

/// The keys that are ready.
pub(super) struct Turns<K> {
    /// The namespaces with keys that are ready or being worked on.
    namespaces: HashMap<String, Line<K>>,
    /// The namespaces with keys that are ready, the next one first.
    order: VecDeque<String>,
    /// The most keys of a namespace that are worked on at the same time: three quarters of the worker's concurrency, rounded
    /// up.
    share: usize,
    ready: usize,
}

struct Line<K> {
    ready: VecDeque<K>,
    working: usize,
}

impl<K: Namespaced> Turns<K> {
    /// For a worker that works on `concurrency` keys at the same time.
    pub(super) fn new(concurrency: usize) -> Self {
        Self {
            namespaces: HashMap::new(),
            order: VecDeque::new(),
            share: (concurrency * 3).div_ceil(4),
            ready: 0,
        }
    }

    /// The number of keys that are ready.
    pub(super) fn len(&self) -> usize {
        self.ready
    }

    pub(super) fn push(&mut self, key: K) {
        let namespace = key.namespace().to_owned();
        let line = self.namespaces.entry(namespace.clone());
        let line = line.or_insert_with(|| Line {
            ready: VecDeque::new(),
            working: 0,
        });
        if line.ready.is_empty() {
            self.order.push_back(namespace);
        }
        line.ready.push_back(key);
        self.ready += 1;
    }

    /// The next key to work on. `None` if no key is ready, or if all ready keys belong to namespaces that use their
    /// whole share. [`Self::ended`] must follow when the work has ended.
    pub(super) fn next(&mut self) -> Option<K> {
        for _ in 0..self.order.len() {
            let namespace = self.order.pop_front()?;
            let line = self.namespaces.get_mut(&namespace)?;
            let mut next = None;
            if line.working < self.share {
                next = line.ready.pop_front();
                line.working += 1;
            }
            if !line.ready.is_empty() {
                self.order.push_back(namespace);
            }
            if next.is_some() {
                self.ready -= 1;
                return next;
            }
        }
        None
    }

    /// The work on a key has ended.
    pub(super) fn ended(&mut self, key: &K) {
        let Some(line) = self.namespaces.get_mut(key.namespace()) else {
            return;
        };
        line.working -= 1;
        if line.working == 0 && line.ready.is_empty() {
            self.namespaces.remove(key.namespace());
        }
    }
}
