//! Bytes that many share: each address and each connection may have a part.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Whose bytes they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Account {
    address: Option<IpAddr>,
    connection: u64,
}

impl Account {
    /// A connection's, from where it comes.
    pub(crate) fn of(address: Option<IpAddr>, connection: u64) -> Self {
        Account { address: address.map(client), connection }
    }
}

/// The address by which a client is counted. Of IPv6 it is the network of 64 bits, since a client may have any address in it.
pub(crate) fn client(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
        v4 => v4,
    }
}

/// A budget of bytes with shares.
#[derive(Debug)]
pub(crate) struct Budget {
    total_bytes: usize,
    address_bytes: usize,
    connection_bytes: usize,
    used: Mutex<Used>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct Used {
    bytes: usize,
    by_address: HashMap<IpAddr, usize>,
    by_connection: HashMap<u64, usize>,
}

/// An account's part of a budget, beside `bytes` that are asked for.
struct Share {
    bytes: usize,
    address: usize,
    connection: usize,
    is_full: bool,
}

/// Bytes that are held; dropping gives them back.
#[derive(Debug, Default)]
pub(crate) struct Charge(#[allow(dead_code, reason = "held for its drop")] Vec<Held>);

#[derive(Debug)]
struct Held {
    budget: Arc<Budget>,
    account: Account,
    bytes: usize,
}

impl Charge {
    /// Nothing.
    pub(crate) fn none() -> Self {
        Charge::default()
    }

    /// Both.
    pub(crate) fn add(&mut self, other: Charge) {
        self.0.extend(other.0);
    }
}

impl Budget {
    /// `total_bytes` for all, of which an address and a connection may have so much.
    pub(crate) fn new(total_bytes: usize, address_bytes: usize, connection_bytes: usize) -> Arc<Self> {
        Arc::new(Budget {
            total_bytes,
            address_bytes,
            connection_bytes,
            used: Mutex::default(),
            freed: Notify::new(),
        })
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes `bytes` where they are free. More than a share takes the whole share.
    pub(crate) fn try_take(self: &Arc<Self>, account: Account, bytes: usize) -> Option<Charge> {
        let mut used = self.used();
        let Share { bytes, address, connection, is_full } = self.share(&used, account, bytes);
        if is_full || used.bytes + bytes > self.total_bytes {
            return None;
        }
        used.bytes += bytes;
        if let Some(of) = account.address {
            used.by_address.insert(of, address + bytes);
        }
        used.by_connection.insert(account.connection, connection + bytes);
        Some(Charge(vec![Held { budget: Arc::clone(self), account, bytes }]))
    }

    /// What an account holds, and whether its share has no room for `bytes`. More than a share counts as the whole share.
    fn share(&self, used: &Used, account: Account, bytes: usize) -> Share {
        let bytes = bytes.min(self.total_bytes).min(self.address_bytes).min(self.connection_bytes);
        let of = |part: Option<&usize>| part.copied().unwrap_or(0);
        let address = of(account.address.and_then(|address| used.by_address.get(&address)));
        let connection = of(used.by_connection.get(&account.connection));
        let is_full = (account.address.is_some() && address + bytes > self.address_bytes)
            || connection + bytes > self.connection_bytes;
        Share { bytes, address, connection, is_full }
    }

    /// Whether it is the caller's own share that has no room for `bytes`: then only the caller itself can make room.
    pub(crate) fn share_is_full(&self, account: Account, bytes: usize) -> bool {
        self.share(&self.used(), account, bytes).is_full
    }

    /// Waits until `bytes` are free and takes them. The caller bounds the wait, and holds nothing of this budget.
    pub(crate) async fn take(self: &Arc<Self>, account: Account, bytes: usize) -> Charge {
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            // From now on nothing that is given back is missed.
            freed.as_mut().enable();
            if let Some(charge) = self.try_take(account, bytes) {
                return charge;
            }
            freed.await;
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut used = self.budget.used();
        used.bytes = used.bytes.saturating_sub(self.bytes);
        if let Some(address) = self.account.address {
            give_back(&mut used.by_address, &address, self.bytes);
        }
        give_back(&mut used.by_connection, &self.account.connection, self.bytes);
        drop(used);
        self.budget.freed.notify_waiters();
    }
}

fn give_back<K: Eq + std::hash::Hash>(parts: &mut HashMap<K, usize>, of: &K, bytes: usize) {
    if let Some(part) = parts.get_mut(of) {
        *part = part.saturating_sub(bytes);
        if *part == 0 {
            parts.remove(of);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_and_a_connection_have_no_more_than_their_share() {
        let budget = Budget::new(100, 50, 30);
        let at =
            |address: &str, connection| Account::of(Some(address.parse().expect("an address")), connection);
        let held = budget.try_take(at("10.0.0.1", 1), 30).expect("room");
        assert!(budget.try_take(at("10.0.0.1", 1), 1).is_none(), "the connection's share");
        let more = budget.try_take(at("10.0.0.1", 2), 20).expect("room");
        assert!(budget.try_take(at("::ffff:10.0.0.1", 3), 1).is_none(), "the address' share");
        let v6 = budget.try_take(at("2001:db8::1", 4), 30).expect("room");
        assert!(budget.try_take(at("2001:db8::2", 5), 21).is_none(), "one network");
        assert!(budget.try_take(at("10.0.0.2", 6), 21).is_none(), "the whole");
        // More than a share is the share.
        drop((held, more, v6));
        let all = budget.try_take(at("10.0.0.1", 1), 1_000).expect("room");
        assert_eq!(budget.used().bytes, 30);
        drop(all);
        let used = budget.used();
        assert!(used.bytes == 0 && used.by_address.is_empty() && used.by_connection.is_empty());
    }

    #[tokio::test]
    async fn who_waits_is_woken() {
        let budget = Budget::new(10, 10, 10);
        let held = budget.take(Account::of(None, 1), 10).await;
        let waits = tokio::spawn({
            let budget = Arc::clone(&budget);
            async move { budget.take(Account::of(None, 2), 10).await }
        });
        tokio::task::yield_now().await;
        drop(held);
        waits.await.expect("taken");
    }
}
