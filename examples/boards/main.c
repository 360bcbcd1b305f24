/* SPDX-License-Identifier: Apache-2.0 */
#include "learn.h"

int main(void)
{
    return learn();
}
