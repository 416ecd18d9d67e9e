{% macro cdc_segment_filter(plan, segment) -%}
{%- set p = plan.position -%}
relid = {{ plan.relid }} and kind = 'row' and generation = {{ p.generation }} and batch_id <= {{ p.batch }} and commit_lsn < {{ p.upto }}
    and (commit_lsn > {{ segment.low.commit }} or (commit_lsn = {{ segment.low.commit }} and ordinal > {{ segment.low.ordinal }}))
{%- if segment.high is not none %}
    and (commit_lsn < {{ segment.high.commit }} or (commit_lsn = {{ segment.high.commit }} and ordinal < {{ segment.high.ordinal }}))
{%- endif %}
{%- endmacro %}
