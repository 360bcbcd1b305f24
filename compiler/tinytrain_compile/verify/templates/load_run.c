    infer(model);
    put_word(TAG_CHECKPOINT, load(model, &instance));
    put_state(&instance);
    infer(model);
