// Requests to stop: SIGTERM, SIGINT and SIGUSR1 are noted here and acted on between steps.
#pragma once

namespace quintet::training {

// Notes the three signals from now on, for the whole process. A second SIGINT ends it at once.
void watch_signals();
// The signal that came, or 0.
int requested_signal();

}  // namespace quintet::training
