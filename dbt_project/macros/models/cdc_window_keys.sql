{% macro cdc_window_keys(plan, window) -%}
select distinct x.* from {{ cdc_events_at(plan.position) }} lateral view inline(array(
  named_struct({% for k in window.key %}'k{{ loop.index }}', new[{{ k - 1 }}]{{ ', ' if not loop.last }}{% endfor %}),
  named_struct({% for k in window.key %}'k{{ loop.index }}', old[{{ k - 1 }}]{{ ', ' if not loop.last }}{% endfor %}))) x
where {{ cdc_segment_filter(plan, window) }} and {{ cdc_is_change() }}
{%- endmacro %}
