// The parts of --runtime from C++.
#include "net_journal.h"
#include "net_monitor.h"
#include "net_replay.h"
#include "net_schedule.h"

alignas(NET_REPLAY_ALIGNMENT) static unsigned char room[3 * NET_REPLAY_RECORD_BYTES];

int main()
{
    net_replay_t replay;
    float x[NET_INPUT_ELEMENTS] = {};
    net_label_t label = 2;
    if (net_replay_init(&replay, room, sizeof room, 1u) != NET_OK || net_replay_add(&replay, x, &label) != NET_OK) {
        return 1;
    }
    const net_schedule_t schedule = {NET_RATE_COSINE, 2u, 0.5f, 10u, 0.0f, 0.0f};
    net_running_t running = {};
    running.window = 4u;
    if (net_schedule_rate(&schedule, 1u) != 0.5f || net_running_add(&running, 2.0f) != NET_OK || running.mean != 2.0f) {
        return 3;
    }
    net_journal_t journal;
    if (net_journal_init(&journal, nullptr) != NET_OK || journal.samples != 0u) {
        return 4;
    }
    label = 0;
    return net_replay_draw(&replay, x, &label) == NET_OK && label == 2 ? 0 : 2;
}
