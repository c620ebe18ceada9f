//! What observers are shown: every object as plain JSON, kept from one look to the next so that only what changed is
//! copied.

use std::sync::Arc;

use serde_json::Value;

use crate::store::Store;

#[derive(Default)]
pub struct View {
    version: u64,
    shared: Vec<Arc<Value>>,
    objects: Vec<Value>,
}

impl View {
    /// Every object, in resource and key order, as of the last refresh.
    pub fn objects(&self) -> &[Value] {
        &self.objects
    }

    pub fn refresh(&mut self, store: &Store) {
        if self.version == store.version() && !self.shared.is_empty() {
            return;
        }
        let old = std::mem::take(&mut self.shared);
        let mut copies = std::mem::take(&mut self.objects);
        // Both are in the same order: what is still there is found by going on from the last one found.
        let mut next = 0;
        for (_, object) in store.all() {
            let found = old.iter().skip(next).position(|known| Arc::ptr_eq(known, object));
            let copy = match found {
                Some(further) => {
                    next += further + 1;
                    copies[next - 1].take()
                }
                None => Value::clone(object),
            };
            self.shared.push(Arc::clone(object));
            self.objects.push(copy);
        }
        self.version = store.version();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_look_is_what_the_store_holds_after_every_kind_of_change() {
        let (mut store, mut view) = (Store::default(), View::default());
        let object = |name: &str, size: u32| json!({"metadata": {"name": name}, "size": size});
        let key = |name: &str| (String::new(), name.to_owned());
        let mut check = |store: &Store| {
            view.refresh(store);
            let held: Vec<Value> = store.all().map(|(_, object)| Value::clone(object)).collect();
            assert_eq!(view.objects(), held);
        };
        for name in ["b", "d", "f"] {
            store.put("boats", object(name, 1));
        }
        check(&store);
        store.put("boats", object("d", 2));
        check(&store);
        store.put("boats", object("a", 1));
        store.put("boats", object("e", 1));
        store.remove("boats", &key("b"));
        check(&store);
        store.remove("boats", &key("f"));
        store.put("anchors", object("z", 1));
        check(&store);
        check(&store);
    }
}
