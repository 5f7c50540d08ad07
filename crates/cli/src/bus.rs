//! A mapped file that was cut short while it is in use: a sentence instead of a signal.

/// From here on, a read behind the end of a mapped file ends the process with a sentence and the
/// exit code of a failure.
#[cfg(target_os = "linux")]
pub fn explain() {
    // SAFETY: the structure is all zeros and then filled in as `sigaction` wants it; the handler
    // only calls functions that a handler may call.
    #[allow(unsafe_code)]
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_ONSTACK;
        libc::sigemptyset(&mut action.sa_mask);
        // Without a handler the signal ends the process as ever.
        let _ = libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
    }
}

#[cfg(not(target_os = "linux"))]
pub fn explain() {}

#[cfg(target_os = "linux")]
extern "C" fn handler(_signal: libc::c_int) {
    const SAID: &[u8] = b"error: a file that is in use was cut short or can't be read any more; \
        if files change while they are in use, --no-mmap reads them at the start\n";
    // SAFETY: `write` and `_exit` may be called in a handler; the bytes are static.
    #[allow(unsafe_code)]
    unsafe {
        let _ = libc::write(libc::STDERR_FILENO, SAID.as_ptr().cast(), SAID.len());
        libc::_exit(1);
    }
}
