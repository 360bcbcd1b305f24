"""First words of docstrings: functions and methods begin with a verb in the imperative (tests/house, scripts/house.py).

VERBS is a list of what may stand there, not of what may not: an unknown word is more often a noun than a verb. Add a
verb that is missing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

_VERBS = """
Accept Accumulate Act Adapt Add Address Adjust Advance Align Allocate Allow Analyse Annotate Answer Append Apply
Approximate Arrange Ask Assemble Assert Assign Assume Attach Average Avoid
Balance Be Begin Bind Bisect Blend Block Borrow Bound Break Bring Broadcast Build Bundle
Calculate Calibrate Call Cancel Canonicalise Carry Cast Catch Change Charge Check Choose Claim Clamp Classify Clean
Clear Clip Clone Close Collapse Collect Combine Compare Compile Complain Complete Compose Compress Compute
Concatenate Confirm Connect Consider Construct Consume Continue Convert Convolve Copy Correct Count Cover Create
Crop Cross Cut
Deal Decide Declare Decode Decrease Decrement Deduce Defer Define Delay Delete Deliver Deny Depend Dequantise Derive
Describe Detect Determine Differentiate Discard Dispatch Display Divide Do Double Download Draw Drive Drop Dump
Duplicate
Eliminate Embed Emit Empty Enable Encode End Enforce Ensure Enter Enumerate Erase Escape Estimate Evaluate Exclude
Execute Expand Explain Export Express Extend Extract
Fail Fake Fall Feed Fetch Fill Filter Find Finish Fit Fix Flatten Flip Flush Fold Follow Forbid Force Forget Fork
Form Format Forward Free Freeze Fuse
Gather Generate Get Give Go Group Grow Guard Guess
Halve Handle Hash Have Help Hide Hold
Identify Ignore Import Improve Include Increase Increment Index Infer Inform Initialise Inline Insert Inspect
Install Invert Invoke Iterate
Join Judge Jump
Keep Know
Label Lay Lead Leave Let Lift Limit Link List Load Locate Lock Log Look Lower
Make Map Mark Mask Match Materialise Maximise Measure Merge Migrate Minimise Mirror Mix Model Modify Move Multiply
Name Narrow Negate Normalise Note Notice
Observe Offer Omit Open Optimise Order Overwrite
Pack Pad Page Parse Partition Pass Paste Pay Perform Permute Pick Place Plan Plant Point Pool Pop Prefer Prepare
Prepend Present Pretend Prevent Price Print Process Produce Project Promise Propagate Propose Protect Prove Provide
Prune Push Put
Quantise Query Quote
Raise Rank Reach Read Rebuild Recall Receive Recognise Recompute Reconstruct Record Reduce Refer Refuse Register
Reject Relate Release Remark Remember Remove Rename Render Reorder Repeat Replace Replay Report Represent Reproduce
Request Require Rescale Reserve Reset Reshape Resolve Restore Restrict Retry Return Reuse Reverse Rewrite Round Run
Sample Saturate Save Say Scale Scatter Schedule Score Search Select Send See Separate Set Settle Shape Share Shift
Shorten Show Shrink Shuffle Sign Simulate Skip Slice Solve Sort Specialise Spell Split Spread Square Stack Start Stay
Step Stop Store Stream Strip Study Subtract Suggest Sum Supply Suppose Survive Swap Switch
Take Tell Test Tie Tile Time Touch Trace Train Transform Translate Transpose Traverse Treat Trim Truncate Try Turn
Undo Unfold Unify Unpack Unroll Update Use
Validate Vary Verify View Visit
Wait Walk Warn Watch Weigh Widen Work Wrap Write
Yield Zero
"""
VERBS = frozenset(_VERBS.split())


def documented_functions(module: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield line, name and docstring of the functions and methods that have one; properties are nouns, and left out."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            decorators = {ast.unparse(one).rpartition(".")[2] for one in node.decorator_list}
            if text and not decorators & {"property", "cached_property"}:
                yield node.lineno, node.name, text


def begins_with_a_verb(text: str) -> bool:
    """Tell whether a docstring's first word is a verb in the imperative."""
    first, *others = text.split()
    return first.rstrip(",").split("-")[0] in VERBS and others[:1] != ["of"]  # "Sum of ..." is a noun
