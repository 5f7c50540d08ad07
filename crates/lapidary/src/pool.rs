//! The threads that import and media share.

use std::sync::Once;
use std::thread::Builder;

use rayon::ThreadPoolBuilder;

/// Makes the pool before it is needed, with as many threads as the system gives. Left to itself it
/// panics where it does not get all that it wants.
pub(crate) fn ready() {
    static READY: Once = Once::new();
    READY.call_once(|| {
        let one = Builder::new().spawn(|| ());
        let pool = ThreadPoolBuilder::new();
        // A pool that is there already is the program's own choice.
        let _ = match one.map(|thread| thread.join()) {
            // Nobody else can have work for it: there is no other thread.
            Err(_) => pool.num_threads(1).use_current_thread().build_global(),
            Ok(_) => {
                let threads = lapidary_backend::host::n_threads();
                pool.num_threads(threads).spawn_handler(start).build_global()
            }
        };
    });
}

/// Starts a thread of the pool. Of those that are not to be had, the others do the work.
fn start(thread: rayon::ThreadBuilder) -> std::io::Result<()> {
    let is_first = thread.index() == 0;
    match Builder::new().spawn(|| thread.run()) {
        Err(e) if is_first => Err(e),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn f26_a_pool_is_made_once_and_works() {
        super::ready();
        super::ready();
        assert_eq!(rayon::join(|| 1, || 2), (1, 2));
    }
}
