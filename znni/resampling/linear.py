"""Temporary."""
import numpy as np
def resample(values, start, resampling, wanted, threads=1):
    out=values
    for axis,along in enumerate(resampling.axes):
        o=np.arange(wanted.start[axis], wanted.stop[axis])
        first=along.first(o)
        if along.source==along.target or along.order==0:
            if along.source==along.target: first=o
            out=np.take(out, first-start[axis], axis=axis+1); continue
        t=(along.at(o)-np.floor(along.at(o))).astype(np.float32)
        second=np.floor(along.at(o)).astype(int)+1
        a=np.take(out, first-start[axis], axis=axis+1)
        b=np.take(out, second.clip(0,along.source-1)-start[axis], axis=axis+1)
        sh=[1]*4; sh[axis+1]=-1
        t=t.reshape(sh)
        out=a*(1-t)+b*t
    return np.ascontiguousarray(out,np.float32)
