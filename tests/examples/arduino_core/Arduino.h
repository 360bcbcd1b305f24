// SPDX-License-Identifier: Apache-2.0
// What the sketches in examples/boards use of an Arduino core, for a host: a serial port that prints, random numbers.
#ifndef ARDUINO_H
#define ARDUINO_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct SerialPort {
    void begin(unsigned long) {}
    void println(const char *text) { printf("%s\n", text); }
    void println(float number) { printf("%.3f\n", static_cast<double>(number)); }
};
inline SerialPort Serial;

inline long random(long below)
{
    return rand() % below;
}

void setup();
void loop();

#endif
