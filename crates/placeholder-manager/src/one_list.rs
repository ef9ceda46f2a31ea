//! Shares one list request between all callers that wait for the same list. For example, runs that end at the same time in a
//! namespace need the same list of pods.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// One list per namespace. Clones share the lists.
#[derive(Debug)]
pub(crate) struct OneList<T> {
    lists: Arc<Mutex<HashMap<String, Arc<List<T>>>>>,
}

#[derive(Debug)]
struct List<T> {
    /// The number of list requests that have begun.
    begun: AtomicU64,
    /// The number and the result of the last successful list. Locked while a list request runs.
    last: tokio::sync::Mutex<Option<(u64, Arc<T>)>>,
}

impl<T> OneList<T> {
    /// The result of a list request for this namespace. Either this function runs `list`, or it takes the result of another
    /// caller's request. In both cases, the request begins after this call. A request that began before this call is not used,
    /// because it may miss a change that the caller needs.
    ///
    /// # Errors
    ///
    /// The errors of `list`, never the errors of another caller's list.
    pub(crate) async fn get<E>(
        &self,
        namespace: &str,
        list: impl Future<Output = Result<T, E>>,
    ) -> Result<Arc<T>, E> {
        let shared = self.of(namespace);
        let before = shared.begun.load(Ordering::SeqCst);
        let mut last = shared.last.lock().await;
        if let Some((number, found)) = &*last
            && *number > before
        {
            return Ok(found.clone());
        }
        let number = shared.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let found = Arc::new(list.await?);
        *last = Some((number, found.clone()));
        Ok(found)
    }

    fn of(&self, namespace: &str) -> Arc<List<T>> {
        // No code that holds this lock can panic.
        let mut lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        lists.retain(|_, list| Arc::strong_count(list) > 1);
        lists.entry(namespace.to_owned()).or_default().clone()
    }
}

impl<T> Default for OneList<T> {
    fn default() -> Self {
        Self {
            lists: Arc::default(),
        }
    }
}

impl<T> Clone for OneList<T> {
    fn clone(&self) -> Self {
        Self {
            lists: self.lists.clone(),
        }
    }
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self {
            begun: AtomicU64::default(),
            last: tokio::sync::Mutex::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::future::join_all;
    use futures::poll;
    use tokio::sync::oneshot;

    type Found = Result<Arc<u32>, &'static str>;

    #[tokio::test]
    async fn v4_a_list_serves_those_alone_who_asked_before_it_began() {
        let lists = OneList::default();
        let (end, ended) = oneshot::channel();
        let mut first = Box::pin(lists.get("ci", async { ended.await.map_err(|_| "dropped") }));
        assert!(poll!(&mut first).is_pending());
        // These two callers ask while the first request runs. One more request is enough for both.
        let mut second = Box::pin(lists.get("ci", async { Ok(2) }));
        let mut third = Box::pin(lists.get("ci", async { Ok(3) }));
        assert!(poll!(&mut second).is_pending() && poll!(&mut third).is_pending());
        // A caller for another namespace does not wait.
        let other: Found = lists.get("other", async { Ok(9) }).await;
        assert_eq!(other.as_deref(), Ok(&9));
        end.send(1).unwrap();
        let found: Vec<Found> = join_all([
            first as std::pin::Pin<Box<dyn Future<Output = Found>>>,
            second,
            third,
        ])
        .await;
        let found: Vec<u32> = found.into_iter().map(|found| *found.unwrap()).collect();
        assert_eq!(found, [1, 2, 2]);
        // A caller that asks afterwards gets a new list.
        let later: Found = lists.get("ci", async { Ok(4) }).await;
        assert_eq!(later.as_deref(), Ok(&4));
    }

    #[tokio::test]
    async fn who_fails_or_goes_away_keeps_nobody_from_listing() {
        let lists = OneList::default();
        let failed: Found = lists.get("ci", async { Err("refused") }).await;
        assert_eq!(failed.as_deref(), Err(&"refused"));
        let mut gone = Box::pin(lists.get("ci", std::future::pending::<Result<u32, &str>>()));
        assert!(poll!(&mut gone).is_pending());
        let waiting = lists.get("ci", async { Ok(5) });
        drop(gone);
        let found: Found = waiting.await;
        assert_eq!(found.as_deref(), Ok(&5));
        assert_eq!(lists.lists.lock().unwrap().len(), 1);
    }
}
