// The parts of --runtime from C++.
#include "net_replay.h"

alignas(NET_REPLAY_ALIGNMENT) static unsigned char room[3 * NET_REPLAY_RECORD_BYTES];

int main()
{
    net_replay_t replay;
    float x[NET_INPUT_ELEMENTS] = {};
    net_label_t label = 2;
    if (net_replay_init(&replay, room, sizeof room, 1u) != NET_OK || net_replay_add(&replay, x, &label) != NET_OK) {
        return 1;
    }
    label = 0;
    return net_replay_draw(&replay, x, &label) == NET_OK && label == 2 ? 0 : 2;
}
