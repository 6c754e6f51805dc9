"""Modules written by hand, of the shape that compilers write, for the tests of explanations."""

from __future__ import annotations

HEAD = """HloModule jit_step, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias) }, \
entry_computation_layout={(f32[16,8]{1,0}, f32[4,16]{1,0})->(f32[16,8]{1,0}, f32[])}, num_partitions=8

FileNames
1 "/home/me/train.py"
2 "/home/me/model.py"
3 "/usr/lib/python3/dist-packages/flax/linear.py"

FunctionNames
1 "step"
2 "loss"
3 "layer"

FileLocations
1 {file_name_id=1 function_name_id=1 line=30 end_line=30 column=4 end_column=9}
2 {file_name_id=1 function_name_id=2 line=21 end_line=21 column=4 end_column=9}
3 {file_name_id=2 function_name_id=3 line=7 end_line=7 column=4 end_column=9}
4 {file_name_id=3 function_name_id=3 line=400 end_line=400 column=4 end_column=9}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}
3 {file_location_id=3 parent_frame_id=3}
4 {file_location_id=4 parent_frame_id=4}

"""

STEP = (
    HEAD
    + """%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%body (carry: (s32[], f32[4,16], f32[16,8])) -> (s32[], f32[4,16], f32[16,8]) {
  %carry = (s32[], f32[4,16]{1,0}, f32[16,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%carry), index=0
  %x = f32[4,16]{1,0} get-tuple-element(%carry), index=1
  %w = f32[16,8]{1,0} get-tuple-element(%carry), index=2
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %whole = f32[16,32]{1,0} all-gather(%w), channel_id=1, replica_groups=mesh['data'=4,'model'=2] {'data'}, \
dimensions={1}, use_global_device_ids=true, metadata={op_name="jit(step)/jvp()/while/body/closed_call/dot_general" \
stack_frame_id=4}
  %h = f32[4,32]{1,0} dot(%x, %whole), lhs_contracting_dims={1}, rhs_contracting_dims={0}, \
metadata={op_name="jit(step)/jvp()/while/body/closed_call/dot_general" stack_frame_id=4}
  %y = f32[4,16]{1,0} slice(%h), slice={[0:4], [0:16]}, metadata={op_name="jit(step)/jvp()/while/body/slice" \
stack_frame_id=3}
  ROOT %after = (s32[], f32[4,16]{1,0}, f32[16,8]{1,0}) tuple(%next, %y, %w)
}

%condition (carry: (s32[], f32[4,16], f32[16,8])) -> pred[] {
  %carry.1 = (s32[], f32[4,16]{1,0}, f32[16,8]{1,0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%carry.1), index=0
  %twelve = s32[] constant(12)
  ROOT %less = pred[] compare(%i.1, %twelve), direction=LT
}

ENTRY %main (w0: f32[16,8], x0: f32[4,16]) -> (f32[16,8], f32[]) {
  %w0 = f32[16,8]{1,0} parameter(0), metadata={op_name="params[\\'w\\']"}
  %x0 = f32[4,16]{1,0} parameter(1), metadata={op_name="x"}
  %zero = s32[] constant(0)
  %begin = (s32[], f32[4,16]{1,0}, f32[16,8]{1,0}) tuple(%zero, %x0, %w0)
  %loop = (s32[], f32[4,16]{1,0}, f32[16,8]{1,0}) while(%begin), condition=%condition, body=%body, \
metadata={op_name="jit(step)/jvp()/while" stack_frame_id=2}
  %last = f32[4,16]{1,0} get-tuple-element(%loop), index=1
  %part = f32[16,8]{1,0} fusion(%last, %w0), kind=kLoop, calls=%outer, \
metadata={op_name="jit(step)/transpose(jvp())/dot_general" stack_frame_id=3}
  %gradient = f32[16,8]{1,0} all-reduce(%part), channel_id=2, replica_groups=[4,2]<=[8], \
use_global_device_ids=true, to_apply=%add, metadata={op_name="jit(step)/transpose(jvp())/dot_general" stack_frame_id=3}
  %updated = f32[16,8]{1,0} subtract(%w0, %gradient), metadata={op_name="jit(step)/sub" stack_frame_id=1}
  %loss = f32[] constant(0)
  ROOT %results = (f32[16,8]{1,0}, f32[]) tuple(%updated, %loss)
}

%outer (p: f32[4,16], q: f32[16,8]) -> f32[16,8] {
  %p = f32[4,16]{1,0} parameter(0)
  %q = f32[16,8]{1,0} parameter(1)
  ROOT %kept = f32[16,8]{1,0} add(%q, %q)
}
"""
)
"""A step: an all-gather in a loop of twelve steps, behind a library's line, and the all-reduce of a gradient."""


def step(**replaced: str) -> str:
    """The step with some of its texts replaced; a text that is not there is an error of the test."""
    text = STEP
    for before, after in replaced.items():
        assert before in text
        text = text.replace(before, after)
    return text
