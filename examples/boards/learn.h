/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LEARN_H
#define LEARN_H

/* Learns from the sensor and saves; 0 if that went well. */
int learn(void);

#endif
