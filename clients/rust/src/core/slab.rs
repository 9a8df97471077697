//! Things that refer to one another by key, since a key, unlike a reference, may outlive its thing.

use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

/// Names an entry of a [`Slab`]. It is never reused for another entry.
pub(crate) struct Key<T> {
    place: u32,
    generation: u32,
    of: PhantomData<fn() -> T>,
}

impl<T> Clone for Key<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Key<T> {}

impl<T> PartialEq for Key<T> {
    fn eq(&self, other: &Self) -> bool {
        self.place == other.place && self.generation == other.generation
    }
}

struct Entry<T> {
    generation: u32,
    thing: Option<T>,
}

pub(crate) struct Slab<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn insert(&mut self, thing: T) -> Key<T> {
        let place = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry { generation: 0, thing: None });
            u32::try_from(self.entries.len() - 1).expect("fewer than 2^32 requests or tickets at once")
        });
        let entry = &mut self.entries[place as usize];
        entry.thing = Some(thing);
        Key { place, generation: entry.generation, of: PhantomData }
    }

    pub(crate) fn get(&self, key: Key<T>) -> Option<&T> {
        let entry = self.entries.get(key.place as usize)?;
        entry.thing.as_ref().filter(|_| entry.generation == key.generation)
    }

    pub(crate) fn remove(&mut self, key: Key<T>) -> Option<T> {
        let entry = self.entries.get_mut(key.place as usize)?;
        if entry.generation != key.generation {
            return None;
        }
        let thing = entry.thing.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(key.place);
        Some(thing)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }
}

impl<T> Index<Key<T>> for Slab<T> {
    type Output = T;

    fn index(&self, key: Key<T>) -> &T {
        self.get(key).expect("the entry of a key that is in use")
    }
}

impl<T> IndexMut<Key<T>> for Slab<T> {
    fn index_mut(&mut self, key: Key<T>) -> &mut T {
        let entry = &mut self.entries[key.place as usize];
        assert!(entry.generation == key.generation, "the entry of a key that is in use");
        entry.thing.as_mut().expect("the entry of a key that is in use")
    }
}
