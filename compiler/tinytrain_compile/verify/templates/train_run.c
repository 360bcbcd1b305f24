    if (header.set_learning_rate != 0u) {
        (void)@prefix@_set_lr(model, header.learning_rate);
    }
    infer(model);
    for (uint32_t step = 0; step < header.steps; step++) {
        train_step(model, &instance, header.batch);
    }
    infer(model);
    put_word(TAG_CHECKPOINT, check_checkpoint(model, &instance));
