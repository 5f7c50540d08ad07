// The number of an invocation over all elements, for workgroups of 256.
fn element(group: vec3<u32>, groups: vec3<u32>, lane: u32) -> u32 {
    return flat_group(group, groups) * 256u + lane;
}
