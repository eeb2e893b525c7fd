// Requests to stop: SIGTERM, SIGINT and SIGUSR1 are noted here and acted on between steps.
#pragma once

namespace quintet::training {

// From now on a thread of its own takes the three signals of the process. Called once, before any other thread starts:
// the calling thread and all that it starts block them, since no signal may interrupt a computing thread (oneDNN 2.6's
// products use the stack pointer as a plain register, and a handler's frame would be written into their data). A SIGINT
// that follows a SIGINT ends the process at once.
void watch_signals();
// The signal that came first, or 0.
int requested_signal();

}  // namespace quintet::training
